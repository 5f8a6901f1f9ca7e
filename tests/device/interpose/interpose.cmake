include(tests/device/fakecudart/fakecudart.cmake)

# Programs that know nothing of moepager, linked with each runtime.
foreach(version 12 13)
    add_library(fakeggml${version} SHARED tests/device/interpose/fakeggml.c
        tests/support/ggml_tensors.c)
    set_target_properties(fakeggml${version} PROPERTIES SKIP_BUILD_RPATH ON
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecudart/${version})
    target_link_libraries(fakeggml${version} PRIVATE mp_options fakecudart${version})
    # Its name is what it is known by.
    add_library(fakenccl${version} SHARED tests/device/interpose/nccl_like.c)
    set_target_properties(fakenccl${version} PROPERTIES OUTPUT_NAME nccl_like SKIP_BUILD_RPATH ON
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecudart/${version})
    target_link_libraries(fakenccl${version} PRIVATE mp_options fakecudart${version})
endforeach()
foreach(program llama_like torch_like vllm_like experts_on_host lookups left_alone busy again forks)
    foreach(version 12 13)
        set(target device_interpose_${program}_${version})
        add_executable(${target} tests/device/interpose/${program}.c)
        target_link_libraries(${target} PRIVATE mp_vmm fakecudart${version} Threads::Threads)
        if(program STREQUAL experts_on_host)
            target_link_libraries(${target} PRIVATE fakeggml${version})
        endif()
        if(program STREQUAL left_alone)
            target_link_libraries(${target} PRIVATE fakenccl${version})
        endif()
        set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
        add_dependencies(${target} fakecuda)
    endforeach()
endforeach()
# The same with the runtime inside, as programs have it that are linked with its archive.
foreach(program llama_like torch_like vllm_like busy again)
    set(target device_interpose_${program}_static)
    add_executable(${target} tests/device/interpose/${program}.c tests/device/fakecudart/launch.c
        tests/device/fakecudart/memory.c tests/device/fakecudart/state.c
        tests/device/fakecudart/streams.c)
    target_link_libraries(${target} PRIVATE mp_vmm Threads::Threads ${CMAKE_DL_LIBS})
    add_dependencies(${target} fakecuda)
endforeach()
add_library(device_interpose_other SHARED tests/device/interpose/other_preload.c)
target_link_libraries(device_interpose_other PRIVATE mp_options ${CMAKE_DL_LIBS})
add_test(NAME device/interpose/programs COMMAND python3 tests/device/interpose/programs.py
    ${CMAKE_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(device/interpose/programs PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
# A sanitizer's runtime is part of each program, so that it is there for what is preloaded.
if(NOT MP_COVERAGE AND (NOT sanitizers OR MP_SANITIZE MATCHES "^(address|thread)$"))
    set(cases timing nothing lookups others busy)
    if(MP_SANITIZE STREQUAL "thread")
        list(APPEND cases uploads again)
    endif()
    if(NOT sanitizers) # the others are many runs, which are slow there
        list(APPEND cases budgets refused failures uploads again forks)
    endif()
    foreach(case ${cases})
        add_test(NAME device/interpose/preload:${case} COMMAND python3 tests/device/interpose/preload.py
            ${CMAKE_BINARY_DIR} ${case} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(device/interpose/preload:${case} PROPERTIES TIMEOUT 600
            SKIP_RETURN_CODE 77)
    endforeach()
endif()
mp_test(device/interpose/tiers_test LIBS mp_interpose mp_vmm ${CMAKE_DL_LIBS} WRAP LABELS fault)
mp_fake_cuda(device/interpose/tiers_test)
mp_test(device/interpose/identity_test LIBS mp_interpose mp_vmm SOURCES tests/support/gguf.c WRAP
    LABELS fault)
mp_test(device/interpose/work_test LIBS mp_interpose mp_vmm Threads::Threads ${CMAKE_DL_LIBS}
    VARIANTS known unknown)
mp_fake_cuda(device/interpose/work_test known unknown)
add_test(NAME device/interpose/names COMMAND python3 tests/device/interpose/names.py
    $<TARGET_FILE:moepager_preload> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(device/interpose/names PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
