# mp_test(base/error_test LIBS mp_base [TIMEOUT s] [LABELS l] [SOURCES more.c] [ARGS ...]
#         [VARIANTS a b])
# builds tests/base/error_test.c as one program and runs it as the test "base/error_test"; with
# VARIANTS it runs once per variant, which is its first argument and part of the test's name.
function(mp_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "LIBS;LABELS;SOURCES;ARGS;VARIANTS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    string(REPLACE "/" "_" target ${name})
    add_executable(${target} tests/${name}.c tests/log_guard.c ${T_SOURCES})
    target_link_libraries(${target} PRIVATE ${T_LIBS} mp_options)
    set(tests ${name})
    if(T_VARIANTS)
        list(TRANSFORM T_VARIANTS PREPEND "${name}:" OUTPUT_VARIABLE tests)
    endif()
    foreach(test ${tests})
        string(REGEX MATCH "[^:]*$" variant ${test})
        if(NOT T_VARIANTS)
            set(variant)
        endif()
        add_test(NAME ${test} COMMAND ${target} ${variant} ${T_ARGS}
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(${test} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
            LABELS "${T_LABELS}")
    endforeach()
endfunction()

# Makes allocations of the linked code fail on demand; see tests/alloc_fault.h.
set(MP_ALLOC_FAULT "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=pthread_create")

mp_test(base/error_test LIBS mp_base)
mp_test(base/lock_test LIBS mp_base)
mp_test(base/log_test LIBS mp_base)
mp_test(base/opt_test LIBS mp_base)
mp_test(base/report_test LIBS mp_base PkgConfig::JANSSON m)
mp_test(engine/json_test LIBS mp_engine)
mp_test(engine/pool_test LIBS mp_engine ${MP_ALLOC_FAULT} SOURCES tests/alloc_fault.c)
mp_test(vmm/file_test LIBS mp_vmm)
mp_test(vmm/backend_test LIBS mp_vmm)
mp_test(vmm/io_options_test LIBS mp_vmm)
mp_test(vmm/memory_room_test LIBS mp_vmm)
mp_test(vmm/reader_test LIBS mp_vmm SOURCES tests/vmm/reader_files.c VARIANTS io_uring threads)
mp_test(vmm/residency_test LIBS mp_vmm)
mp_test(vmm/topology_test LIBS mp_vmm PkgConfig::JANSSON ${MP_ALLOC_FAULT}
    SOURCES tests/alloc_fault.c)
mp_test(vmm/space_test LIBS mp_vmm)
mp_test(vmm/space_stress_test LIBS mp_vmm LABELS stress TIMEOUT 120)
mp_test(vmm/tier_test LIBS mp_vmm)
mp_test(npy_test LIBS m SOURCES tests/npy.c)

mp_test(kernels/kernels_test LIBS mp_kernels TIMEOUT 300)
mp_test(kernels/pointwise_test LIBS mp_kernels)
