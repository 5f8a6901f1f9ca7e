# mp_test(base/error_test LIBS mp_base [TIMEOUT s] [LABELS l] [SOURCES more.c] [ARGS ...])
# builds tests/base/error_test.c as one program and runs it as the test "base/error_test".
function(mp_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "LIBS;LABELS;SOURCES;ARGS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    string(REPLACE "/" "_" target ${name})
    add_executable(${target} tests/${name}.c tests/log_guard.c ${T_SOURCES})
    target_link_libraries(${target} PRIVATE ${T_LIBS} mp_options)
    add_test(NAME ${name} COMMAND ${target} ${T_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
        LABELS "${T_LABELS}")
endfunction()

# Makes allocations of the linked code fail on demand; see tests/alloc_fault.h.
set(MP_ALLOC_FAULT "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc")

mp_test(base/error_test LIBS mp_base)
mp_test(base/lock_test LIBS mp_base)
mp_test(base/log_test LIBS mp_base)
mp_test(base/opt_test LIBS mp_base)
mp_test(base/report_test LIBS mp_base PkgConfig::JANSSON m)
mp_test(engine/json_test LIBS mp_engine)
mp_test(engine/checkpoint_cases_test LIBS mp_engine SOURCES tests/engine/tiny_model.c)
mp_test(engine/config_test LIBS mp_engine PkgConfig::JANSSON)
mp_test(engine/safetensors_test LIBS mp_engine)
mp_test(vmm/file_test LIBS mp_vmm)
mp_test(vmm/backend_test LIBS mp_vmm)
target_link_options(vmm_backend_test PRIVATE
    -Wl,--wrap=mmap64,--wrap=munmap,--wrap=madvise,--wrap=mbind)
mp_test(vmm/memory_room_test LIBS mp_vmm)
mp_test(vmm/residency_test LIBS mp_vmm)
mp_test(vmm/topology_test LIBS mp_vmm PkgConfig::JANSSON ${MP_ALLOC_FAULT}
    SOURCES tests/alloc_fault.c)
mp_test(vmm/tier_test LIBS mp_vmm)
mp_test(npy_test LIBS m SOURCES tests/npy.c)
