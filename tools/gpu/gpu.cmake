# Programs of tools/gpu/run, and its dry run on the fake driver as a test.
foreach(name driver_codes driver_laws check_remap bench_step bench_model)
    add_executable(gpu_${name} tools/gpu/${name}.c)
    target_link_libraries(gpu_${name} PRIVATE mp_engine m)
endforeach()
add_executable(gpu_check_kernels tools/gpu/check_kernels.c tools/gpu/check.c
    tools/gpu/check_choices.c tools/gpu/check_layer.c tools/gpu/check_products.c)
target_link_libraries(gpu_check_kernels PRIVATE mp_engine mp_simt)

# What needs a GPU and is skipped without one; ctest -L gpu runs these alone.
foreach(name driver_codes driver_laws check_remap check_kernels)
    add_test(NAME gpu/${name} COMMAND gpu_${name} 0)
    set_tests_properties(gpu/${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS gpu TIMEOUT 120)
endforeach()

# The same laws, call by call, of the driver without a device: its record is kept.
add_test(NAME system/tools/gpu_driver_laws
    COMMAND sh -c "$<TARGET_FILE:gpu_driver_laws> 0 | diff tests/data/driver/laws/fakecuda.txt -"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_dependencies(gpu_driver_laws fakecuda)
set_tests_properties(system/tools/gpu_driver_laws PROPERTIES TIMEOUT 60
    ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda)

# What goes wrong on a machine, with programs that stand in for the real ones.
add_test(NAME system/tools/gpu_run COMMAND tests/system/tools/gpu_run.py short ${CMAKE_BINARY_DIR}
    ${CMAKE_BINARY_DIR}/gpu-run-short WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/gpu_run PROPERTIES TIMEOUT 600)

# Kernels run on the CPU here: too slow with sanitizers, which see the same code in the tests.
if(NOT sanitizers AND NOT MP_COVERAGE)
    add_dependencies(gpu_check_kernels fakecuda)
    add_test(NAME system/tools/check_kernels COMMAND tests/system/tools/check_kernels.py ${CMAKE_BINARY_DIR}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/tools/check_kernels PROPERTIES TIMEOUT 300)
    add_test(NAME system/tools/gpu_run_all COMMAND tests/system/tools/gpu_run.py all
        ${CMAKE_BINARY_DIR} ${CMAKE_BINARY_DIR}/gpu-dry-run
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/tools/gpu_run_all PROPERTIES TIMEOUT 1200 LABELS "slow" COST -1)
endif()
