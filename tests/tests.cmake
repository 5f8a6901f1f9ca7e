# The calls of tests/fault/wrap.h, with the names that 64-bit file offsets give them.
set(mp_wrapped_calls malloc calloc realloc aligned_alloc posix_memalign strdup open open64 openat
    openat64 fstat fstat64 fstatat fstatat64 statx fcntl fcntl64 pread pread64 read mmap mmap64
    munmap madvise mlock memfd_create ftruncate ftruncate64 fopen fopen64 opendir eventfd
    pthread_create pthread_join io_uring_queue_init io_uring_submit_and_wait
    io_uring_wait_cqes)

# mp_test(base/error_test LIBS mp_base [TIMEOUT s] [LABELS l] [SOURCES more.c] [ARGS ...]
#         [VARIANTS a b] [WRAP])
# builds tests/base/error_test.c as one program and runs it as the test "base/error_test"; with
# VARIANTS it runs once per variant, which is its first argument and part of the test's name. With
# WRAP, calls of the system and of libraries can be made to fail; see tests/fault/wrap.h.
function(mp_test name)
    cmake_parse_arguments(T "WRAP" "TIMEOUT" "LIBS;LABELS;SOURCES;ARGS;VARIANTS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    if(sanitizers OR MP_COVERAGE)
        math(EXPR T_TIMEOUT "4 * ${T_TIMEOUT}")
    endif()
    string(REPLACE "/" "_" target ${name})
    add_executable(${target} tests/${name}.c tests/log_guard.c ${T_SOURCES})
    target_link_libraries(${target} PRIVATE ${T_LIBS} mp_options)
    if(T_WRAP)
        list(TRANSFORM mp_wrapped_calls PREPEND "-Wl,--wrap=" OUTPUT_VARIABLE wraps)
        target_sources(${target} PRIVATE tests/fault/wrap.c)
        target_link_libraries(${target} PRIVATE PkgConfig::URING)
        target_link_options(${target} PRIVATE ${wraps})
    endif()
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

# All layers once more for tests that account for every call site: what the source writes once is
# one place in the program, with its line.
set(sources)
foreach(layer mp_base mp_vmm mp_policy mp_engine)
    get_target_property(list ${layer} SOURCES)
    list(APPEND sources ${list})
endforeach()
add_library(mp_sites OBJECT EXCLUDE_FROM_ALL ${sources})
target_compile_options(mp_sites PRIVATE -O0 -g)
target_link_libraries(mp_sites PUBLIC mp_options mp_kernels Threads::Threads PkgConfig::HWLOC
    PkgConfig::NUMA PkgConfig::URING PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::UTF8PROC)

# Makes allocations of the linked code fail on demand; see tests/alloc_fault.h.
set(MP_ALLOC_FAULT
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=pthread_create)

include(tests/fakecuda/fakecuda.cmake)

mp_test(base/error_test LIBS mp_base)
mp_test(base/lock_test LIBS mp_base)
mp_test(base/log_test LIBS mp_base)
mp_test(base/opt_test LIBS mp_base)
mp_test(base/report_test LIBS mp_base PkgConfig::JANSSON m ${MP_ALLOC_FAULT}
    -Wl,--wrap=fdopen,--wrap=fsync,--wrap=fclose SOURCES tests/alloc_fault.c)
mp_test(engine/json_test LIBS mp_engine)
mp_test(engine/calibration_test LIBS mp_engine m)
mp_test(engine/predict_test LIBS mp_engine m SOURCES tests/engine/harness.c tests/npy.c TIMEOUT 120)
mp_test(engine/checkpoint_cases_test LIBS mp_engine SOURCES tests/engine/tiny_model.c)
mp_test(engine/loader_fault_test LIBS mp_engine PkgConfig::JANSSON
    SOURCES tests/engine/tiny_model.c WRAP LABELS fault TIMEOUT 120)
mp_test(engine/pool_test LIBS mp_engine ${MP_ALLOC_FAULT} SOURCES tests/alloc_fault.c)
mp_test(engine/engine_fault_test LIBS mp_sites ${CMAKE_DL_LIBS}
    SOURCES tests/engine/engine_fault_parts.c tests/engine/engine_fault_commands.c WRAP
    LABELS fault TIMEOUT 900)
mp_test(engine/config_test LIBS mp_engine PkgConfig::JANSSON)
mp_test(engine/safetensors_test LIBS mp_engine TIMEOUT 200)
mp_test(engine/tokenizer_test LIBS mp_engine TIMEOUT 300)
mp_test(engine/chat_test LIBS mp_engine)
mp_test(engine/route_from_test LIBS mp_engine)
mp_test(engine/sampler_test LIBS mp_engine m)
mp_test(engine/engine_io_test LIBS mp_engine SOURCES tests/engine/harness.c
    VARIANTS io_uring threads cuda-inclusive cuda-exclusive WRAP LABELS fault TIMEOUT 120)
mp_fake_cuda(engine/engine_io_test cuda-inclusive cuda-exclusive)
mp_test(engine/token_path_test LIBS mp_engine -Wl,--wrap=pthread_mutex_lock
    SOURCES tests/engine/harness.c WRAP)
mp_test(engine/generate_test LIBS mp_engine SOURCES tests/engine/harness.c TIMEOUT 120)
mp_test(engine/tokenizer_cases_test LIBS mp_engine ${MP_ALLOC_FAULT} SOURCES tests/alloc_fault.c
    TIMEOUT 600)
mp_test(vmm/file_test LIBS mp_vmm)
mp_test(vmm/backend_test LIBS mp_vmm)
target_link_options(vmm_backend_test PRIVATE
    -Wl,--wrap=mmap64,--wrap=munmap,--wrap=madvise,--wrap=mbind)
set(machines good numa_id_unknown no_host_numa no_device init_fails version_fails count_fails)
mp_test(vmm/backend_cuda_test LIBS mp_vmm VARIANTS ${machines} no_driver)
mp_fake_cuda(vmm/backend_cuda_test ${machines})
set(machines registered unpinned by_driver reordered by_uuid hidden wrong mig mps)
mp_test(vmm/cuda_machines_test LIBS mp_vmm VARIANTS ${machines})
mp_fake_cuda(vmm/cuda_machines_test ${machines})
mp_fake_cuda(engine/engine_fault_test)
mp_test(engine/gpu_test LIBS mp_engine m VARIANTS good no_driver)
mp_fake_cuda(engine/gpu_test good)
include(tests/fakecublas/fakecublas.cmake)
add_test(NAME tools/gpu_bench_kernels COMMAND gpu_bench_kernels --small)
add_dependencies(gpu_bench_kernels fakecuda)
set_tests_properties(tools/gpu_bench_kernels PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda
    PASS_REGULAR_EXPRESSION "experts bf16 8 of .* 8 rows each.*attention 40 positions, 1 token, parts")
set(probes good places no_host_numa numa_breaks)
mp_test(engine/probe_test LIBS mp_sites ${CMAKE_DL_LIBS} m VARIANTS ${probes}
    ARGS $<TARGET_FILE:moepager> TIMEOUT 200)
mp_fake_cuda(engine/probe_test ${probes})
add_dependencies(engine_probe_test moepager)
mp_test(engine/cuda_logits_test LIBS mp_engine m SOURCES tests/engine/logits_check.c
    tests/engine/harness.c tests/npy.c
    VARIANTS own cublas TIMEOUT 300)
mp_fake_cuda(engine/cuda_logits_test own)
mp_fake_cublas(engine/cuda_logits_test cublas)
mp_test(engine/cuda_engine_test LIBS mp_engine m SOURCES tests/engine/harness.c tests/npy.c
    tests/engine/repack_check.c VARIANTS prompt late TIMEOUT 300)
mp_fake_cuda(engine/cuda_engine_test prompt late)
mp_test(engine/costs_test LIBS mp_engine SOURCES tests/engine/repack_check.c TIMEOUT 200)
mp_fake_cuda(engine/costs_test)
mp_test(engine/cuda_profiles_test LIBS mp_engine m SOURCES tests/engine/harness.c tests/npy.c
    VARIANTS 0 1 2 3 4 assign TIMEOUT 200)
mp_fake_cuda(engine/cuda_profiles_test 0 1 2 3 4 assign)
mp_test(engine/cuda_many_test LIBS mp_engine m SOURCES tests/engine/harness.c tests/npy.c
    tests/engine/repack_check.c TIMEOUT 200)
add_dependencies(engine_cuda_many_test fakecuda fakecublas)
set_tests_properties(engine/cuda_many_test PROPERTIES ENVIRONMENT
    "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda:${CMAKE_BINARY_DIR}/fakecublas")
mp_test(engine/cuda_predict_test LIBS mp_engine m SOURCES tests/engine/harness.c
    VARIANTS prompt late TIMEOUT 200)
mp_fake_cuda(engine/cuda_predict_test prompt late)
set(variants memory again later-hybrid later-window-exclusive pause-exclusive pause-hybrid processes
    no_host_numa numa_id_unknown-hybrid)
mp_test(engine/cuda_faults_test LIBS mp_engine m SOURCES tests/engine/harness.c
    VARIANTS ${variants} LABELS fault TIMEOUT 300)
mp_fake_cuda(engine/cuda_faults_test ${variants})
set(variants table table-graphs window-exclusive window-hybrid)
mp_test(engine/cuda_sites_test LIBS mp_sites ${CMAKE_DL_LIBS} m SOURCES tests/engine/harness.c
    VARIANTS ${variants} cublas LABELS fault TIMEOUT 300)
mp_fake_cuda(engine/cuda_sites_test ${variants})
mp_fake_cublas(engine/cuda_sites_test cublas)
set(files ${variants})
list(TRANSFORM files PREPEND $<TARGET_FILE:engine_cuda_sites_test>.)
list(TRANSFORM variants PREPEND engine/cuda_sites_test:)
add_test(NAME engine/cuda_sites COMMAND python3 tests/engine/cuda_sites.py ${files}
    $<TARGET_FILE:engine_probe_test>.places WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(engine/cuda_sites PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77
    DEPENDS "${variants};engine/probe_test:places")
mp_test(engine/cuda_memory_test LIBS mp_engine m SOURCES tests/engine/harness.c
    VARIANTS inclusive exclusive lost TIMEOUT 120)
mp_fake_cuda(engine/cuda_memory_test inclusive exclusive lost)
mp_test(engine/cuda_laws_test LIBS mp_engine m SOURCES tests/engine/harness.c
    VARIANTS prompt seeded lazy in_place cublas TIMEOUT 200)
mp_fake_cuda(engine/cuda_laws_test prompt seeded lazy in_place)
mp_fake_cublas(engine/cuda_laws_test cublas)
mp_test(fakecuda/streams_test LIBS mp_options ${CMAKE_DL_LIBS} VARIANTS prompt seeded lazy)
mp_fake_cuda(fakecuda/streams_test prompt seeded lazy)
mp_test(fakecuda/failures_test LIBS mp_options ${CMAKE_DL_LIBS} VARIANTS prompt seeded lazy)
mp_fake_cuda(fakecuda/failures_test prompt seeded lazy)
mp_test(fakecuda/machine_test LIBS mp_kernels ${CMAKE_DL_LIBS}
    VARIANTS graphs no_keys profile processes)
mp_fake_cuda(fakecuda/machine_test graphs no_keys profile processes)
mp_test(vmm/cuda_abi_test LIBS mp_base)
mp_test(engine/node_test LIBS mp_engine m)
mp_fake_cuda(engine/node_test)
mp_test(vmm/cuda_watch_test LIBS mp_vmm Threads::Threads VARIANTS hang threads log off)
mp_fake_cuda(vmm/cuda_watch_test hang threads log off)
mp_test(vmm/cuda_mappings_test LIBS mp_vmm)
mp_fake_cuda(vmm/cuda_mappings_test)
mp_test(vmm/io_options_test LIBS mp_vmm)
mp_test(vmm/memory_room_test LIBS mp_vmm)
mp_test(vmm/pci_link_test LIBS mp_vmm)
mp_test(vmm/populate_test LIBS mp_vmm WRAP LABELS fault)
mp_test(vmm/reader_fault_test LIBS mp_vmm SOURCES tests/vmm/reader_files.c
    VARIANTS io_uring threads WRAP LABELS fault TIMEOUT 120)
mp_test(vmm/reader_push_test LIBS mp_vmm SOURCES tests/vmm/reader_files.c WRAP LABELS fault)
target_link_options(vmm_reader_push_test PRIVATE -Wl,--wrap=eventfd_write)
mp_test(vmm/reader_stress_test LIBS mp_vmm SOURCES tests/vmm/reader_files.c
    VARIANTS io_uring threads LABELS stress TIMEOUT 120)
mp_test(vmm/reader_test LIBS mp_vmm SOURCES tests/vmm/reader_files.c VARIANTS io_uring threads)
mp_test(vmm/residency_test LIBS mp_vmm)
mp_test(vmm/topology_test LIBS mp_vmm PkgConfig::JANSSON ${MP_ALLOC_FAULT}
    SOURCES tests/alloc_fault.c)
mp_test(vmm/space_test LIBS mp_vmm)
mp_test(vmm/space_layout_test LIBS mp_vmm)
mp_test(vmm/space_cuda_test LIBS mp_vmm VARIANTS table window pinned unpinned TIMEOUT 120)
mp_fake_cuda(vmm/space_cuda_test table window pinned unpinned)
mp_test(vmm/host_tier_test LIBS mp_vmm Threads::Threads PkgConfig::NUMA
    VARIANTS handles registered unpinned WRAP LABELS fault TIMEOUT 120)
mp_fake_cuda(vmm/host_tier_test handles registered unpinned)
mp_test(vmm/link_test LIBS mp_vmm)
mp_fake_cuda(vmm/link_test)
mp_test(vmm/window_test LIBS mp_vmm)
mp_fake_cuda(vmm/window_test)
mp_test(vmm/space_cuda_stress_test LIBS mp_vmm LABELS stress TIMEOUT 120)
mp_fake_cuda(vmm/space_cuda_stress_test)
set(variants system driver system-unpinned driver-unpinned)
mp_test(vmm/space_cuda_fault_test LIBS mp_vmm VARIANTS ${variants} WRAP LABELS fault TIMEOUT 200)
mp_fake_cuda(vmm/space_cuda_fault_test ${variants})
mp_test(vmm/space_fault_test LIBS mp_vmm WRAP LABELS fault TIMEOUT 120)
mp_test(vmm/space_stress_test LIBS mp_vmm LABELS stress TIMEOUT 120)
mp_test(vmm/tier_test LIBS mp_vmm)
mp_test(vmm/virtual_link_test LIBS mp_vmm)
mp_test(engine/sim_test LIBS mp_engine)
mp_test(engine/auto_sim_test LIBS mp_engine TIMEOUT 600)
mp_test(engine/auto_host_test LIBS mp_engine SOURCES tests/engine/harness.c TIMEOUT 200)
mp_test(engine/sim_scenarios_test LIBS mp_engine TIMEOUT 300)
mp_test(npy_test LIBS m SOURCES tests/npy.c)

mp_test(kernels/kernels_test LIBS mp_kernels TIMEOUT 300)
mp_test(kernels/pointwise_test LIBS mp_kernels)
mp_test(kernels/cuda_matmul_test LIBS mp_simt TIMEOUT 200)
mp_test(simt/simt_test LIBS mp_simt LABELS stress)
mp_test(kernels/cuda_experts_test LIBS mp_simt TIMEOUT 200)
mp_test(kernels/cuda_attend_test LIBS mp_simt TIMEOUT 200)
mp_test(kernels/cuda_choose_test LIBS mp_simt TIMEOUT 200)
mp_test(kernels/cuda_layer_test LIBS mp_simt)
mp_test(engine/logits_test LIBS mp_engine SOURCES tests/engine/logits_check.c
    tests/engine/harness.c tests/npy.c TIMEOUT 300)
mp_test(engine/sweep_test LIBS mp_engine SOURCES tests/engine/harness.c tests/npy.c TIMEOUT 300)

mp_test(engine/repack_test LIBS mp_engine SOURCES tests/engine/harness.c tests/npy.c
    tests/engine/tiny_model.c tests/engine/repack_check.c TIMEOUT 300)
mp_test(engine/slices_test LIBS mp_engine SOURCES tests/engine/harness.c
    tests/engine/tiny_model.c tests/engine/repack_check.c TIMEOUT 300)
mp_test(engine/repack_fault_test LIBS mp_engine SOURCES tests/engine/tiny_model.c
    tests/engine/repack_check.c WRAP LABELS fault TIMEOUT 300)
target_link_options(engine_repack_fault_test PRIVATE
    -Wl,--wrap=write,--wrap=fsync,--wrap=rename,--wrap=renameat,--wrap=unlinkat,--wrap=mkdir
    -Wl,--wrap=fdopendir,--wrap=open_memstream,--wrap=close,--wrap=fstatvfs64)
mp_test(engine/repack_cli_test LIBS mp_engine PkgConfig::JANSSON
    SOURCES tests/engine/repack_check.c ARGS $<TARGET_FILE:moepager>
    TIMEOUT 200)
add_dependencies(engine_repack_cli_test moepager)

mp_test(policy/assign_test LIBS mp_policy)
mp_test(policy/dali_test LIBS mp_policy SOURCES tests/policy/pager_world.c)
mp_test(policy/decisions_test LIBS mp_policy)
mp_test(policy/ema_test LIBS mp_policy m)
mp_test(policy/evict_test LIBS mp_policy)
mp_test(policy/pager_stress_test LIBS mp_policy SOURCES tests/policy/pager_world.c LABELS stress
    TIMEOUT 120)
mp_test(policy/pager_test LIBS mp_policy SOURCES tests/policy/pager_world.c WRAP)
mp_test(policy/pager_plan_test LIBS mp_policy SOURCES tests/policy/pager_world.c WRAP)
mp_test(policy/pager_ahead_test LIBS mp_policy SOURCES tests/policy/pager_world.c WRAP)
mp_test(policy/pager_budget_test LIBS mp_policy SOURCES tests/policy/pager_world.c)
mp_test(policy/pager_slices_test LIBS mp_policy SOURCES tests/policy/pager_world.c WRAP)
mp_test(policy/policy_fault_test LIBS mp_policy SOURCES tests/policy/pager_world.c WRAP LABELS fault
    TIMEOUT 120)
mp_test(policy/policy_test LIBS mp_policy)
mp_test(policy/predict_prefetch_test LIBS mp_policy)
mp_test(policy/presched_test LIBS mp_policy)
mp_test(policy/partition_test LIBS mp_policy)
mp_test(policy/evict_fading_test LIBS mp_policy)
mp_test(policy/activation_test LIBS mp_policy m)
mp_test(policy/auto_test LIBS mp_policy)
mp_test(policy/auto_time_test LIBS mp_policy TIMEOUT 300)
mp_test(policy/replay_test LIBS mp_policy)
mp_test(policy/replay_curve_test LIBS mp_policy TIMEOUT 300)
mp_test(policy/route_test LIBS mp_policy)
mp_test(policy/smoe_test LIBS mp_policy)
mp_test(policy/step_test LIBS mp_policy m SOURCES tests/policy/pager_world.c)
mp_test(policy/template_test LIBS mp_policy SOURCES policy/template.c tests/policy/pager_world.c)
mp_test(policy/trace_test LIBS mp_policy m WRAP LABELS fault)

# Each is named for what was broken, with symptom and cause at its head.
foreach(name bench_context batch_text_with_nul info_of_large_model second_output_fails
    unused_at_the_end switch_with_value refused_before_loading)
    mp_test(regress/${name} LIBS mp_base PkgConfig::JANSSON SOURCES tests/cli/cli.c
        ARGS $<TARGET_FILE:moepager> LABELS cli TIMEOUT 120)
    add_dependencies(regress_${name} moepager)
endforeach()

include(tests/tree.cmake)

add_test(NAME tools/bench_table COMMAND python3 tests/tools/bench_table.py
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME tools/bench_programs COMMAND python3 tests/tools/bench_programs.py
    $<TARGET_FILE:moepager> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(tools/bench_programs PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
add_test(NAME tools/bench_model COMMAND python3 tests/tools/bench_model.py $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(tools/bench_model PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)

if(NOT sanitizers)
    # Peaks of memory are promised for what people run.
    add_test(NAME memory/run COMMAND python3 tests/memory/run.py $<TARGET_FILE:moepager>
        ${CMAKE_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(memory/run PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS memory)
endif()
