# Programs of tools/gpu/run, and its dry run on the fake driver as a test.
foreach(name driver_codes check_remap check_kernels)
    add_executable(gpu_${name} tools/gpu/${name}.c)
    target_link_libraries(gpu_${name} PRIVATE mp_engine m)
endforeach()
# Tests that say the same on a real driver, for the machine that has one.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/gpu_tests.txt CONTENT "engine_gpu_test\n")
