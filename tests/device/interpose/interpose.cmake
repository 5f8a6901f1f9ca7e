include(tests/device/fakecudart/fakecudart.cmake)

# Programs that know nothing of moepager, linked with each runtime.
foreach(program llama_like torch_like vllm_like)
    foreach(version 12 13)
        set(target device_interpose_${program}_${version})
        add_executable(${target} tests/device/interpose/${program}.c)
        target_link_libraries(${target} PRIVATE mp_vmm fakecudart${version} Threads::Threads)
        set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
        add_dependencies(${target} fakecuda)
    endforeach()
endforeach()
add_test(NAME device/interpose/programs COMMAND python3 tests/device/interpose/programs.py
    ${CMAKE_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(device/interpose/programs PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
