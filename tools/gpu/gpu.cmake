# Programs of tools/gpu/run, and its dry run on the fake driver as a test.
foreach(name driver_codes check_remap check_kernels bench_step)
    add_executable(gpu_${name} tools/gpu/${name}.c)
    target_link_libraries(gpu_${name} PRIVATE mp_engine m)
endforeach()

# Kernels run on the CPU here: too slow with sanitizers, which see the same code in the tests.
if(NOT sanitizers AND NOT MP_COVERAGE)
    add_test(NAME tools/gpu_run COMMAND tests/tools/gpu_run.py ${CMAKE_BINARY_DIR}
        ${CMAKE_BINARY_DIR}/gpu-dry-run WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(tools/gpu_run PROPERTIES TIMEOUT 600 LABELS "cli")
endif()
