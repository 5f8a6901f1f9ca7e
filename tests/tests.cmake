# The calls of tests/support/fault/wrap.h, with the names that 64-bit file offsets give them.
set(mp_wrapped_calls malloc calloc realloc aligned_alloc posix_memalign strdup open open64 openat
    openat64 fstat fstat64 fstatat fstatat64 statx fcntl fcntl64 pread pread64 read mmap mmap64
    munmap madvise fopen fopen64 fdopen opendir eventfd
    pthread_create pthread_join io_uring_queue_init io_uring_submit_and_wait
    io_uring_wait_cqes mbind)
set(mp_wrapped_file_calls write fsync rename renameat unlinkat mkdir fdopendir open_memstream close
    fopencookie access linkat fstatvfs64)

# The sanitizer of addresses makes compilers slow, and what tests do themselves is little.
set(mp_test_flags)
if(MP_SANITIZE STREQUAL "address")
    set(mp_test_flags -O0)
endif()

# target_sources(), but what several tests share in tests/ is compiled once.
function(mp_test_sources target)
    foreach(source ${ARGN})
        if(source MATCHES "^tests/.*\\.c$")
            string(MAKE_C_IDENTIFIER ${source} object)
            if(NOT TARGET ${object})
                add_library(${object} OBJECT EXCLUDE_FROM_ALL ${source})
                target_link_libraries(${object} PRIVATE mp_options)
                target_compile_options(${object} PRIVATE ${mp_test_flags})
            endif()
            set(source $<TARGET_OBJECTS:${object}>)
        endif()
        target_sources(${target} PRIVATE ${source})
    endforeach()
endfunction()

# mp_test(unit/vmm/base/error_test LIBS mp_base [TIMEOUT s] [LABELS l] [SOURCES more.c] [ARGS ...]
#         [VARIANTS a b] [WRAP] [WRAP_FILES])
# builds tests/unit/vmm/base/error_test.c as one program and runs it as the test "unit/vmm/base/error_test"; with
# VARIANTS it runs once per variant, which is its first argument and part of the test's name. With
# WRAP, calls of the system and of libraries can be made to fail, with WRAP_FILES also what writes
# files; see tests/support/fault/wrap.h.
function(mp_test name)
    cmake_parse_arguments(T "WRAP;WRAP_FILES" "TIMEOUT" "LIBS;LABELS;SOURCES;ARGS;VARIANTS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 120)
    endif()
    if(sanitizers OR MP_COVERAGE)
        math(EXPR T_TIMEOUT "4 * ${T_TIMEOUT}")
    endif()
    string(REPLACE "/" "_" target ${name})
    add_executable(${target} tests/${name}.c)
    mp_test_sources(${target} tests/support/log_guard.c ${T_SOURCES})
    target_compile_options(${target} PRIVATE ${mp_test_flags})
    target_link_libraries(${target} PRIVATE ${T_LIBS} mp_options)
    if(T_WRAP OR T_WRAP_FILES)
        set(wraps ${mp_wrapped_calls})
        mp_test_sources(${target} tests/support/fault/fault.c tests/support/fault/wrap.c)
        if(T_WRAP_FILES)
            list(APPEND wraps ${mp_wrapped_file_calls})
            mp_test_sources(${target} tests/support/fault/wrap_files.c)
        endif()
        list(TRANSFORM wraps PREPEND "-Wl,--wrap=")
        target_link_libraries(${target} PRIVATE PkgConfig::URING PkgConfig::NUMA)
        target_link_options(${target} PRIVATE ${wraps})
    endif()
    set(tests ${name})
    if(T_VARIANTS)
        list(TRANSFORM T_VARIANTS PREPEND "${name}:" OUTPUT_VARIABLE tests)
    endif()
    set(wanted ${tests})
    if(MP_TESTS_MATCH)
        list(FILTER wanted INCLUDE REGEX "${MP_TESTS_MATCH}")
    endif()
    if(MP_TESTS_SKIP)
        list(FILTER wanted EXCLUDE REGEX "${MP_TESTS_SKIP}")
    endif()
    if(NOT wanted)
        set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
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
if(MHD_FOUND)
    target_link_libraries(mp_sites PUBLIC PkgConfig::MHD)
endif()

include(tests/device/fakecuda/fakecuda.cmake)

mp_test(unit/vmm/base/arena_test LIBS mp_base)
mp_test(unit/vmm/base/error_test LIBS mp_base)
mp_test(unit/vmm/base/lock_test LIBS mp_base)
mp_test(unit/vmm/base/log_test LIBS mp_base)
mp_test(unit/vmm/base/spin_test LIBS mp_base)
mp_test(unit/vmm/base/text_test LIBS mp_base)
mp_test(unit/vmm/options/opt_test LIBS mp_base)
mp_test(unit/vmm/output/json_out_test LIBS mp_base PkgConfig::JANSSON m)
mp_test(unit/vmm/output/timeline_test LIBS mp_base PkgConfig::JANSSON WRAP)
mp_test(unit/vmm/output/out_test LIBS mp_base WRAP_FILES)
mp_test(unit/vmm/format/json_test LIBS mp_engine)
mp_test(unit/engine/apart_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/engine/calibration_test LIBS mp_engine m)
mp_test(unit/engine/heat_map_test LIBS mp_engine WRAP LABELS fault)
mp_test(model/token_heat_test LIBS mp_engine SOURCES tests/model/harness.c WRAP LABELS fault)
mp_test(model/llapor_learn_test LIBS mp_engine m SOURCES tests/model/harness.c)
mp_test(model/predict_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c TIMEOUT 120)
mp_test(model/kv_type_test LIBS mp_engine m SOURCES tests/model/harness.c)
mp_test(unit/vmm/format/checkpoint_cases_test LIBS mp_engine SOURCES tests/model/tiny_model.c)
mp_test(unit/vmm/format/checkpoint_forms_test LIBS mp_engine SOURCES tests/model/tiny_model.c)
mp_test(unit/vmm/format/loader_fault_test LIBS mp_engine PkgConfig::JANSSON
    SOURCES tests/model/tiny_model.c WRAP LABELS fault TIMEOUT 120)
mp_test(unit/engine/launch_test LIBS mp_engine SOURCES tests/support/gguf.c WRAP LABELS fault)
mp_test(unit/engine/preload_check_test LIBS mp_engine PkgConfig::JANSSON SOURCES tests/support/gguf.c)
mp_test(unit/engine/preload_program_test LIBS mp_engine SOURCES tests/support/elf_file.c)
mp_test(unit/engine/pool_test LIBS mp_engine WRAP)
mp_test(model/fault/engine_fault_test LIBS mp_sites ${CMAKE_DL_LIBS}
    SOURCES tests/model/fault/engine_fault_parts.c tests/model/fault/engine_fault_text.c
    tests/model/fault/engine_fault_commands.c tests/model/fault/engine_fault_run.c
    tests/support/gguf.c WRAP
    LABELS fault TIMEOUT 900)
mp_test(model/fault/families_fault_test LIBS mp_sites ${CMAKE_DL_LIBS}
    SOURCES tests/model/fault/engine_fault_run.c VARIANTS once full WRAP LABELS fault TIMEOUT 300)
set_tests_properties(model/fault/families_fault_test:full PROPERTIES LABELS "fault;full" TIMEOUT 900)
mp_test(unit/engine/arch_test LIBS mp_engine)
mp_test(unit/engine/config_test LIBS mp_engine PkgConfig::JANSSON)
mp_test(unit/engine/model_name_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/engine/config_families_test LIBS mp_engine PkgConfig::JANSSON m)
mp_test(unit/vmm/format/elf_test LIBS mp_vmm WRAP LABELS fault)
mp_test(unit/vmm/format/expert_names_test LIBS mp_vmm)
mp_test(unit/vmm/format/gguf_messages_test LIBS mp_vmm mp_base SOURCES tests/support/gguf.c)
mp_test(unit/vmm/format/gguf_test LIBS mp_vmm mp_base SOURCES tests/support/gguf.c WRAP LABELS fault)
mp_test(unit/vmm/format/safetensors_test LIBS mp_engine TIMEOUT 200)
mp_test(unit/engine/tokenizer_test LIBS mp_engine TIMEOUT 300)
mp_test(unit/engine/chat_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/engine/jinja_cases_test LIBS mp_engine PkgConfig::JANSSON)
mp_test(unit/engine/progress_test LIBS mp_engine)
mp_test(unit/engine/terminal_text_test LIBS mp_engine)
mp_test(unit/engine/forced_routing_test LIBS mp_engine)
mp_test(unit/engine/repack_cut_test LIBS mp_engine)
mp_test(unit/engine/draft_test LIBS mp_engine)
mp_test(unit/engine/prefix_store_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/engine/sampler_test LIBS mp_engine m)
mp_test(unit/engine/score_source_test LIBS mp_engine)
mp_test(unit/engine/state_test LIBS mp_engine)
mp_test(model/engine_io_test LIBS mp_engine SOURCES tests/model/harness.c
    VARIANTS io_uring threads cuda-inclusive cuda-exclusive WRAP LABELS fault TIMEOUT 120)
mp_fake_cuda(model/engine_io_test cuda-inclusive cuda-exclusive)
mp_test(model/token_path_test LIBS mp_engine -Wl,--wrap=pthread_mutex_lock
    SOURCES tests/model/harness.c WRAP)
mp_test(model/family_test LIBS mp_engine SOURCES tests/model/harness.c tests/model/rewrite.c
    tests/model/tiny_model.c tests/model/repack_check.c)
target_link_options(model_family_test PRIVATE -Wl,--wrap=mp_arch_at)
mp_test(model/recurrent_test LIBS mp_engine SOURCES tests/model/harness.c tests/model/rewrite.c
    tests/model/tiny_model.c)
set(TO_GGUF tests/model/gguf/to_gguf.c tests/model/gguf/to_gguf_delta.c
    tests/model/gguf/to_gguf_tensors.c)
mp_test(model/gguf/gguf_families_test LIBS mp_engine PkgConfig::JANSSON m
    SOURCES tests/model/harness.c tests/model/rewrite.c tests/model/tiny_model.c
    tests/model/gguf/twin_runs.c ${TO_GGUF} WRAP LABELS fault TIMEOUT 300)
mp_test(model/gguf/gguf_test LIBS mp_engine PkgConfig::JANSSON SOURCES tests/model/gguf/twin_runs.c tests/model/harness.c
    tests/model/rewrite.c tests/model/tiny_model.c ${TO_GGUF} WRAP LABELS fault TIMEOUT 300)
add_executable(make_twin tests/model/gguf/make_twin.c tests/model/gguf/twin_runs.c
    tests/model/harness.c tests/model/rewrite.c tests/model/tiny_model.c ${TO_GGUF})
target_link_libraries(make_twin PRIVATE mp_engine mp_options PkgConfig::JANSSON m)
add_test(NAME system/families/llama COMMAND python3 tests/system/families/llama_test.py
    $<TARGET_FILE:moepager> $<TARGET_FILE:make_twin> WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(system/families/llama PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
add_test(NAME system/families/types COMMAND python3 tests/system/families/types_test.py
    $<TARGET_FILE:moepager> WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(system/families/types PROPERTIES TIMEOUT 3600 SKIP_RETURN_CODE 77 LABELS full)
mp_test(model/gguf/quantised_test LIBS mp_engine PkgConfig::JANSSON m SOURCES tests/model/harness.c
    tests/model/rewrite.c tests/model/tiny_model.c ${TO_GGUF} VARIANTS cpu cuda ways tensor TIMEOUT 300)
mp_fake_cuda(model/gguf/quantised_test cuda ways tensor)
mp_test(model/gguf/quantised_families_test LIBS mp_engine PkgConfig::JANSSON m
    SOURCES tests/model/harness.c tests/model/gguf/twin_runs.c tests/model/rewrite.c
    tests/model/tiny_model.c ${TO_GGUF} TIMEOUT 600)
mp_test(model/gguf/gguf_refusals_test LIBS mp_engine PkgConfig::JANSSON SOURCES tests/model/harness.c
    tests/model/rewrite.c tests/model/tiny_model.c ${TO_GGUF} WRAP LABELS fault TIMEOUT 300)
mp_test(model/gguf/convert_test LIBS mp_engine PkgConfig::JANSSON m SOURCES tests/model/harness.c
    tests/model/gguf/twin_runs.c tests/model/rewrite.c tests/model/tiny_model.c ${TO_GGUF} TIMEOUT 300)
mp_test(model/gguf/convert_refusals_test LIBS mp_engine PkgConfig::JANSSON m SOURCES
    tests/model/rewrite.c tests/model/tiny_model.c tests/support/gguf.c WRAP LABELS fault TIMEOUT 300)
mp_test(model/gguf/imatrix_test LIBS mp_engine PkgConfig::JANSSON m SOURCES
    tests/model/rewrite.c tests/model/tiny_model.c tests/support/gguf.c TIMEOUT 300)
mp_test(model/mxfp4_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    tests/model/rewrite.c tests/model/tiny_model.c TIMEOUT 120)
mp_test(model/block_type_test LIBS mp_engine m SOURCES tests/model/harness.c tests/model/rewrite.c
    tests/model/tiny_model.c tests/model/repack_check.c VARIANTS host cuda TIMEOUT 120)
mp_fake_cuda(model/block_type_test cuda)
target_link_options(model_block_type_test PRIVATE -Wl,--wrap=mp_wtype_info,--wrap=mp_dtype_info
    -Wl,--wrap=mp_dtype_find,--wrap=mp_wtype_of,--wrap=mp_dtype_of)
mp_test(model/generate_test LIBS mp_engine SOURCES tests/model/harness.c TIMEOUT 120)
mp_test(model/measure_test LIBS mp_engine m)
mp_test(model/memory_share_test LIBS mp_engine m SOURCES tests/model/harness.c WRAP LABELS fault TIMEOUT 120)
target_link_options(model_memory_share_test PRIVATE -Wl,--wrap=mp_engine_set_budget)
mp_test(model/kv_room_test LIBS mp_engine m SOURCES tests/model/harness.c WRAP LABELS fault TIMEOUT 120)
mp_test(model/batcher_test LIBS mp_engine m SOURCES tests/model/harness.c WRAP LABELS fault TIMEOUT 120)
mp_test(model/draft_model_test LIBS mp_engine TIMEOUT 300)
mp_test(model/draft_head_test LIBS mp_engine PkgConfig::JANSSON m SOURCES tests/model/harness.c
    tests/model/repack_check.c tests/model/rewrite.c tests/model/tiny_model.c tests/support/npy.c
    ${TO_GGUF} TIMEOUT 300)
mp_test(model/draft_memory_test LIBS mp_engine)
mp_test(model/draft_test LIBS mp_engine m SOURCES tests/model/harness.c TIMEOUT 240)
add_test(NAME system/chat/chat COMMAND python3 tests/system/chat/chat_test.py $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/chat/chat PROPERTIES TIMEOUT 300 LABELS cli)
add_test(NAME system/top/top COMMAND python3 tests/system/top/top_test.py $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/top/top PROPERTIES TIMEOUT 300 LABELS cli)
if(MHD_FOUND)
    mp_test(model/serve_stress_test LIBS mp_engine m SOURCES tests/model/harness.c TIMEOUT 240)
    mp_test(model/serve_test LIBS mp_engine m SOURCES tests/model/harness.c WRAP_FILES LABELS fault TIMEOUT 240)
    target_link_options(model_serve_test PRIVATE -Wl,--wrap=socketpair)
    foreach(case api client limits stop)
        add_test(NAME system/serve/${case} COMMAND python3 tests/system/serve/serve_test.py
            $<TARGET_FILE:moepager> ${case} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(system/serve/${case} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77
            LABELS cli)
    endforeach()
    foreach(test security logprobs tools page memory)
        add_test(NAME system/serve/${test} COMMAND python3 tests/system/serve/${test}_test.py
            $<TARGET_FILE:moepager> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(system/serve/${test} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS cli)
    endforeach()
endif()
if(MHD_FOUND)
    add_test(NAME system/serve/soak COMMAND python3 tests/system/serve/soak_test.py
        $<TARGET_FILE:moepager> 3 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    add_test(NAME system/serve/soak_long COMMAND python3 tests/system/serve/soak_test.py
        $<TARGET_FILE:moepager> 600 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/serve/soak PROPERTIES TIMEOUT 600 LABELS cli)
    set_tests_properties(system/serve/soak_long PROPERTIES TIMEOUT 1500 LABELS "cli;full")
endif()
mp_test(unit/engine/http_none_test LIBS mp_engine SOURCES engine/serve/http_none.c)
mp_test(model/generate_stops_test LIBS mp_engine SOURCES tests/model/harness.c TIMEOUT 120)
mp_test(unit/engine/calls_test LIBS mp_engine PkgConfig::JANSSON WRAP LABELS fault)
mp_test(unit/engine/grammar_test LIBS mp_engine PkgConfig::JANSSON m WRAP LABELS fault)
mp_test(unit/engine/tokenizer_cases_test LIBS mp_engine WRAP TIMEOUT 600)
mp_test(unit/engine/tokenizer_refusals_test LIBS mp_engine)
mp_test(unit/engine/tokenizer_gguf_test LIBS mp_engine PkgConfig::JANSSON m SOURCES tests/support/gguf.c WRAP
    LABELS fault TIMEOUT 600)
mp_test(unit/vmm/io/file_test LIBS mp_vmm)
mp_test(unit/vmm/backend/backend_test LIBS mp_vmm WRAP)
set(machines good numa_id_unknown no_host_numa no_device init_fails version_fails count_fails)
mp_test(device/vmm/backend_cuda_test LIBS mp_vmm VARIANTS ${machines} no_driver)
mp_test(device/vmm/backend_cuda_fault_test LIBS mp_vmm VARIANTS good numa_id_unknown LABELS fault)
mp_fake_cuda(device/vmm/backend_cuda_fault_test good numa_id_unknown)
mp_fake_cuda(device/vmm/backend_cuda_test ${machines})
mp_test(device/vmm/cuda_machines_test LIBS mp_vmm VARIANTS registered unpinned)
mp_fake_cuda(device/vmm/cuda_machines_test registered unpinned)
set(machines by_driver two_nodes wrong_node reordered by_uuid hidden wrong mig mps granules context)
mp_test(device/vmm/cuda_devices_test LIBS mp_vmm VARIANTS ${machines})
mp_fake_cuda(device/vmm/cuda_devices_test ${machines})
mp_fake_cuda(model/fault/engine_fault_test)
mp_test(device/gpu_test LIBS mp_engine m VARIANTS good no_driver)
mp_test(device/gpu_work_test LIBS mp_engine m)
mp_fake_cuda(device/gpu_test good)
mp_fake_cuda(device/gpu_work_test)
set(machines sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120)
mp_test(device/gpu_shared_test LIBS mp_engine m VARIANTS ${machines})
mp_fake_cuda(device/gpu_shared_test ${machines})
mp_test(device/gpu_image_test LIBS mp_engine WRAP LABELS fault)
mp_fake_cuda(device/gpu_image_test)
include(tests/device/fakecublas/fakecublas.cmake)
include(tests/device/interpose/interpose.cmake)
add_test(NAME system/tools/gpu_bench_kernels COMMAND gpu_bench_kernels --small)
add_dependencies(gpu_bench_kernels fakecuda)
set_tests_properties(system/tools/gpu_bench_kernels PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda
    PASS_REGULAR_EXPRESSION
    "layer, project .*layer, all of its 8 launches, graph .*sample_list, sample of .*experts bf16 8 of 128, list of 8, .* 1 row .*experts bf16 8 of 128, list of 64, .* 8 rows.*experts q8_0 8 of .* 1 row.*attention bf16 40 positions, 1 token, split")
add_test(NAME static/kernel_grids COMMAND python3 tools/ptx_report.py $<TARGET_FILE:gpu_bench_kernels> grids
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/kernel_grids PROPERTIES LABELS static)
set(probes good places no_host_numa numa_breaks)
mp_test(device/probe_test LIBS mp_sites ${CMAKE_DL_LIBS} m VARIANTS ${probes}
    ARGS $<TARGET_FILE:moepager> TIMEOUT 200)
mp_fake_cuda(device/probe_test ${probes})
add_dependencies(device_probe_test moepager)
mp_test(device/cuda_engine_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    tests/model/repack_check.c VARIANTS prompt late TIMEOUT 300)
mp_fake_cuda(device/cuda_engine_test prompt late)
mp_test(device/device_room_test LIBS mp_engine VARIANTS auto graphs larger several)
mp_fake_cublas(device/device_room_test auto)
mp_fake_cuda(device/device_room_test graphs larger several)
mp_test(device/costs_test LIBS mp_engine SOURCES tests/model/repack_check.c TIMEOUT 200)
mp_fake_cuda(device/costs_test)
mp_test(device/cuda_expert_gemm_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    tests/model/repack_check.c TIMEOUT 200)
add_dependencies(device_cuda_expert_gemm_test fakecuda fakecublas)
set_tests_properties(device/cuda_expert_gemm_test PROPERTIES ENVIRONMENT
    "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda:${CMAKE_BINARY_DIR}/fakecublas")
mp_test(device/cuda_tensor_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    VARIANTS new old TIMEOUT 200)
mp_fake_cuda(device/cuda_tensor_test new old)
mp_test(device/device_compute_test LIBS mp_engine SOURCES tests/model/harness.c LABELS fault)
mp_fake_cuda(device/device_compute_test)
mp_test(device/device_limits_test LIBS mp_engine SOURCES tests/model/harness.c)
mp_fake_cuda(device/device_limits_test)
mp_test(device/cuda_predict_test LIBS mp_engine m SOURCES tests/model/harness.c
    VARIANTS prompt late TIMEOUT 300)
mp_fake_cuda(device/cuda_predict_test prompt late)
set(variants memory lost again later-hybrid later-window-exclusive pause-exclusive pause-hybrid processes
    no_host_numa numa_id_unknown-hybrid)
mp_test(device/cuda_faults_test LIBS mp_engine m SOURCES tests/model/harness.c
    VARIANTS ${variants} LABELS fault TIMEOUT 300)
mp_fake_cuda(device/cuda_faults_test ${variants})
set(variants table table-graphs window-exclusive window-hybrid)
mp_test(device/cuda_sites_test LIBS mp_sites ${CMAKE_DL_LIBS} m SOURCES tests/model/harness.c
    VARIANTS ${variants} cublas LABELS fault TIMEOUT 300)
mp_fake_cuda(device/cuda_sites_test ${variants})
mp_fake_cublas(device/cuda_sites_test cublas)
set(files ${variants})
list(TRANSFORM files PREPEND $<TARGET_FILE:device_cuda_sites_test>.)
list(TRANSFORM variants PREPEND device/cuda_sites_test:)
add_test(NAME device/cuda_sites COMMAND python3 tests/device/cuda_sites.py ${files}
    $<TARGET_FILE:device_probe_test>.places WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(device/cuda_sites PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77
    DEPENDS "${variants};device/probe_test:places")
mp_test(device/cuda_memory_test LIBS mp_engine m SOURCES tests/model/harness.c
    VARIANTS inclusive exclusive lost TIMEOUT 120)
mp_fake_cuda(device/cuda_memory_test inclusive exclusive lost)
mp_test(device/cuda_laws_test LIBS mp_engine m SOURCES tests/model/harness.c
    VARIANTS prompt seeded lazy bf16 f16 early in_place graphs cublas TIMEOUT 200)
mp_fake_cuda(device/cuda_laws_test prompt seeded lazy bf16 f16 early in_place graphs)
mp_fake_cublas(device/cuda_laws_test cublas)
mp_test(device/cuda_layer_test LIBS mp_engine m SOURCES tests/model/harness.c tools/gpu/layer.c)
mp_fake_cuda(device/cuda_layer_test)
# tests/data/logits/README.md
set(logits ${PROJECT_SOURCE_DIR}/tests/data/logits/a5354ea)
add_test(NAME system/tools/compare_logits:same COMMAND python3 tools/compare_logits ${logits}
    ${CMAKE_BINARY_DIR} --tokens 40 --most 0 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME system/tools/compare_logits:near COMMAND python3 tools/compare_logits ${logits}
    ${CMAKE_BINARY_DIR} --tokens 300 --most 5e-6 --model tests/data/models/qwen3moe-tiny
    --model tests/data/models/mixtral-tiny WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
# Another prompt: the tool says so.
add_test(NAME system/tools/compare_logits:far COMMAND python3 tools/compare_logits ${logits}
    ${CMAKE_BINARY_DIR} --tokens 40 --most 0.01 --model tests/data/models/mixtral-tiny -- --seed 7
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/compare_logits:far PROPERTIES PASS_REGULAR_EXPRESSION
    "more than 0.01, or other tokens: mixtral-tiny")
foreach(part same near far)
    set_tests_properties(system/tools/compare_logits:${part} PROPERTIES TIMEOUT 600 LABELS cli)
endforeach()
mp_test(device/cuda_counts_test LIBS mp_engine m SOURCES tests/model/harness.c TIMEOUT 300)
mp_fake_cuda(device/cuda_counts_test)
target_link_options(device_cuda_counts_test PRIVATE -Wl,--wrap=pthread_mutex_lock
    -Wl,--wrap=pthread_cond_wait -Wl,--wrap=pthread_cond_timedwait)
mp_test(device/cuda_syscalls_test LIBS mp_engine m SOURCES tests/model/harness.c)
mp_fake_cuda(device/cuda_syscalls_test)
set_tests_properties(device/cuda_syscalls_test PROPERTIES SKIP_RETURN_CODE 77)
target_link_options(device_cuda_syscalls_test PRIVATE -Wl,--wrap=pthread_sigmask)
mp_test(device/cuda_early_test LIBS mp_engine m SOURCES tests/model/harness.c
    VARIANTS able sm_89 driver_12_2)
mp_fake_cuda(device/cuda_early_test able sm_89 driver_12_2)
mp_test(device/fakecuda/test/early_test LIBS mp_options ${CMAKE_DL_LIBS})
mp_fake_cuda(device/fakecuda/test/early_test)
mp_test(device/fakecuda/test/streams_test LIBS mp_options ${CMAKE_DL_LIBS} VARIANTS prompt seeded lazy)
mp_fake_cuda(device/fakecuda/test/streams_test prompt seeded lazy)
mp_test(device/fakecuda/test/failures_test LIBS mp_options ${CMAKE_DL_LIBS} VARIANTS prompt seeded lazy)
mp_fake_cuda(device/fakecuda/test/failures_test prompt seeded lazy)
mp_test(device/fakecuda/test/machine_test LIBS mp_kernels ${CMAKE_DL_LIBS}
    VARIANTS graphs no_keys profile processes sm_75 sm_80 sm_86)
mp_fake_cuda(device/fakecuda/test/machine_test graphs no_keys profile processes sm_75 sm_80 sm_86)
mp_test(device/vmm/cuda_abi_test LIBS mp_base)
mp_test(model/node_test LIBS mp_engine m)
mp_fake_cuda(model/node_test)
mp_test(device/vmm/cuda_watchdog_test LIBS mp_vmm Threads::Threads VARIANTS hang threads many log off)
mp_fake_cuda(device/vmm/cuda_watchdog_test hang threads many log off)
mp_test(device/vmm/cuda_mappings_test LIBS mp_vmm)
mp_fake_cuda(device/vmm/cuda_mappings_test)
mp_test(unit/vmm/io/io_options_test LIBS mp_vmm)
mp_test(unit/vmm/topo/memory_room_test LIBS mp_vmm)
mp_test(unit/engine/doctor_test LIBS mp_engine)
mp_test(unit/engine/top_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/vmm/topo/pci_link_test LIBS mp_vmm)
mp_test(unit/vmm/space/populate_test LIBS mp_vmm WRAP LABELS fault)
mp_test(unit/vmm/io/reader_fault_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c
    VARIANTS io_uring threads WRAP LABELS fault TIMEOUT 120)
mp_test(unit/vmm/io/reader_retry_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c
    VARIANTS io_uring threads WRAP LABELS fault TIMEOUT 120)
mp_test(unit/vmm/io/reader_push_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c WRAP LABELS fault)
target_link_options(unit_vmm_io_reader_push_test PRIVATE -Wl,--wrap=eventfd_write)
mp_test(unit/vmm/io/reader_stress_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c
    VARIANTS io_uring threads LABELS stress TIMEOUT 120)
mp_test(unit/vmm/io/reader_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c VARIANTS io_uring threads)
mp_test(unit/vmm/io/reader_order_test LIBS mp_vmm SOURCES tests/unit/vmm/io/reader_files.c VARIANTS io_uring threads)
mp_test(unit/vmm/space/residency_test LIBS mp_vmm)
mp_test(unit/vmm/topo/topology_test LIBS mp_vmm PkgConfig::JANSSON WRAP)
mp_test(unit/vmm/space/space_test LIBS mp_vmm)
mp_test(unit/vmm/space/space_leases_test LIBS mp_vmm)
mp_test(unit/vmm/space/space_layout_test LIBS mp_vmm)
mp_test(unit/vmm/space/space_resize_test LIBS mp_vmm)
mp_test(device/vmm/space_cuda_test LIBS mp_vmm VARIANTS table window pinned unpinned TIMEOUT 120)
mp_test(device/vmm/space_cuda_wrong_test LIBS mp_vmm VARIANTS table window pinned unpinned TIMEOUT 120)
mp_fake_cuda(device/vmm/space_cuda_test table window pinned unpinned)
mp_fake_cuda(device/vmm/space_cuda_wrong_test table window pinned unpinned)
mp_test(device/vmm/host_tier_test LIBS mp_vmm Threads::Threads PkgConfig::NUMA
    VARIANTS handles registered unpinned WRAP LABELS fault TIMEOUT 120)
mp_fake_cuda(device/vmm/host_tier_test handles registered unpinned)
target_link_options(device_vmm_host_tier_test PRIVATE -Wl,--wrap=mp_reader_submit)
mp_test(device/vmm/link_test LIBS mp_vmm)
mp_fake_cuda(device/vmm/link_test)
mp_test(device/vmm/window_test LIBS mp_vmm)
mp_fake_cuda(device/vmm/window_test)
mp_test(device/vmm/space_cuda_stress_test LIBS mp_vmm LABELS stress TIMEOUT 120)
mp_fake_cuda(device/vmm/space_cuda_stress_test)
set(variants system driver system-unpinned driver-unpinned)
mp_test(device/vmm/space_cuda_fault_test LIBS mp_vmm VARIANTS ${variants} WRAP LABELS fault TIMEOUT 200)
mp_fake_cuda(device/vmm/space_cuda_fault_test ${variants})
mp_test(unit/vmm/space/space_fault_test LIBS mp_vmm WRAP LABELS fault TIMEOUT 120)
mp_test(unit/vmm/space/space_stress_test LIBS mp_vmm LABELS stress TIMEOUT 120)
mp_test(unit/vmm/space/tier_test LIBS mp_vmm)
mp_test(unit/vmm/io/virtual_link_test LIBS mp_vmm)
mp_test(unit/policy/sim/cluster/cluster_test LIBS mp_engine m WRAP LABELS fault TIMEOUT 120)
mp_test(unit/policy/sim/cluster/cluster_file_test LIBS mp_engine WRAP LABELS fault)
mp_test(unit/policy/sim/cluster/cluster_routing_test LIBS mp_engine m WRAP LABELS fault TIMEOUT 120)
mp_test(unit/policy/sim/sim_pinned_test LIBS mp_policy)
mp_test(unit/policy/sim/sim_test LIBS mp_engine)
mp_test(unit/policy/sim/sim_description_test LIBS mp_engine)
mp_test(unit/policy/sim/sim_routing_test LIBS mp_engine)
mp_test(unit/policy/sim/auto_sim_test LIBS mp_engine TIMEOUT 600)
mp_test(model/auto_host_test LIBS mp_engine SOURCES tests/model/harness.c TIMEOUT 200)
mp_test(unit/policy/sim/sim_scenarios_test LIBS mp_engine TIMEOUT 300)
mp_test(support/npy_test LIBS m SOURCES tests/support/npy.c)

mp_test(unit/kernels/kernels_test LIBS mp_kernels TIMEOUT 300)
mp_test(unit/kernels/math_test LIBS mp_kernels)
mp_test(unit/kernels/kernels_pinned_test LIBS mp_kernels)
mp_test(unit/kernels/pointwise_test LIBS mp_kernels)
if(NOT MP_SANITIZE AND NOT MP_COVERAGE) # it builds its own programs
    foreach(which short full)
        add_test(NAME unit/kernels/neon_test:${which} COMMAND tests/unit/kernels/neon_test.sh ${which}
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(unit/kernels/neon_test:${which} PROPERTIES TIMEOUT 1200 SKIP_RETURN_CODE 77)
    endforeach()
    set_tests_properties(unit/kernels/neon_test:full PROPERTIES LABELS full)
endif()
mp_test(unit/kernels/quant_blocks_test LIBS mp_kernels)
mp_test(unit/kernels/encode_test LIBS mp_kernels m)
mp_test(unit/kernels/quant_pinned_test LIBS mp_kernels)
mp_test(unit/kernels/quant_test LIBS mp_kernels TIMEOUT 300)
mp_test(unit/kernels/cuda/cuda_matmul_test LIBS mp_simt TIMEOUT 200)
mp_test(unit/kernels/cuda/cuda_quant_test LIBS mp_simt TIMEOUT 200)
mp_test(device/simt/simt_test LIBS mp_simt LABELS stress)
mp_test(unit/kernels/cuda/cuda_experts_test LIBS mp_simt TIMEOUT 200)
mp_test(unit/kernels/cuda/cuda_tensor_test LIBS mp_simt TIMEOUT 200)
mp_test(unit/kernels/cuda/cuda_attend_test LIBS mp_simt TIMEOUT 200)
mp_test(unit/kernels/cuda/cuda_choose_test LIBS mp_simt TIMEOUT 200)
mp_test(unit/kernels/cuda/cuda_layer_test LIBS mp_simt)
mp_test(unit/kernels/cuda/cuda_fused_test LIBS mp_simt)
mp_test(model/logits_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    VARIANTS cpu own assign tensor cublas TIMEOUT 300)
mp_fake_cuda(model/logits_test own assign tensor)
mp_fake_cublas(model/logits_test cublas)
set(budgets cuda-0 cuda-1 cuda-2 cuda-3 cuda-4)
mp_test(model/sweep_test LIBS mp_engine m SOURCES tests/model/harness.c tests/support/npy.c
    VARIANTS cpu ${budgets} TIMEOUT 300)
mp_fake_cuda(model/sweep_test ${budgets})

mp_test(model/repack/repack_test LIBS mp_engine SOURCES tests/model/harness.c tests/support/npy.c
    tests/model/tiny_model.c tests/model/repack_check.c TIMEOUT 300)
mp_test(model/repack/repack_again_test LIBS mp_engine SOURCES tests/model/harness.c tests/support/npy.c
    tests/model/tiny_model.c tests/model/repack_check.c TIMEOUT 300)
mp_test(model/slices_test LIBS mp_engine SOURCES tests/model/harness.c
    tests/model/tiny_model.c tests/model/repack_check.c TIMEOUT 300)
mp_test(model/repack/repack_fault_test LIBS mp_engine SOURCES tests/model/tiny_model.c
    tests/model/repack_check.c WRAP_FILES LABELS fault TIMEOUT 300)
mp_test(model/repack/repack_mxfp4_test LIBS mp_engine PkgConfig::JANSSON m SOURCES tests/model/harness.c
    tests/model/gguf/twin_runs.c tests/model/repack_check.c tests/model/rewrite.c tests/model/tiny_model.c
    ${TO_GGUF} WRAP LABELS fault TIMEOUT 300)
mp_test(model/repack/repack_cli_test LIBS mp_engine PkgConfig::JANSSON
    SOURCES tests/model/repack_check.c ARGS $<TARGET_FILE:moepager>
    TIMEOUT 200)
add_dependencies(model_repack_repack_cli_test moepager)

mp_test(unit/policy/assign/assign_test LIBS mp_policy)
mp_test(unit/policy/assign/assign_hand_test LIBS mp_policy)
mp_test(unit/policy/bounds_test LIBS mp_policy)
mp_test(unit/policy/evict/shadow_test LIBS mp_policy)
mp_test(unit/policy/evict/likely_test LIBS mp_policy m)
mp_test(unit/policy/dali_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c)
mp_test(unit/policy/record/decisions_test LIBS mp_policy)
mp_test(unit/policy/record/decisions_damage_test LIBS mp_policy)
mp_test(unit/policy/ema_test LIBS mp_policy m)
mp_test(unit/policy/evict_test LIBS mp_policy)
mp_test(unit/policy/pinned_test LIBS mp_policy)
mp_test(unit/policy/ghost_test LIBS mp_policy m)
# Layers to run; with sanitizers fewer.
set(pager_layers)
if(sanitizers)
    set(pager_layers 100)
endif()
mp_test(unit/policy/pager/pager_stress_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c LABELS stress
    TIMEOUT 120
    ARGS ${pager_layers})
mp_test(unit/policy/pager/pager_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_policy_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_plan_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_moves_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_ahead_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_ahead_fault_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/pager/pager_budget_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c)
mp_test(unit/policy/pager/pager_slices_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP)
mp_test(unit/policy/policy_fault_test LIBS mp_policy SOURCES tests/unit/policy/pager/pager_world.c WRAP LABELS fault
    TIMEOUT 120)
mp_test(unit/policy/bound_test LIBS mp_policy)
mp_test(unit/policy/heat_test LIBS mp_policy)
mp_test(unit/policy/plugins_test LIBS mp_policy WRAP_FILES ARGS ${CMAKE_BINARY_DIR}/plugins LABELS fault)
target_link_options(unit_policy_plugins_test PRIVATE
    -Wl,--dynamic-list=${PROJECT_SOURCE_DIR}/policy/plugin.list,--wrap=dlopen)
# The plug-ins that it loads: a good one, and one for each way to be refused.
foreach(plugin newest LACKS SYMBOL ABI EMPTY CLASH DEFAULT OFFSET OPTION CALL)
    set(source tests/unit/policy/plugin_bad.c)
    if(plugin STREQUAL newest)
        set(source tests/system/install/newest.c)
    endif()
    add_library(plugin_${plugin} MODULE ${source})
    target_compile_definitions(plugin_${plugin} PRIVATE BAD_${plugin})
    target_include_directories(plugin_${plugin} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(plugin_${plugin} PRIVATE mp_options)
    set_target_properties(plugin_${plugin} PROPERTIES PREFIX "" OUTPUT_NAME ${plugin}
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
    add_dependencies(unit_policy_plugins_test plugin_${plugin})
endforeach()
mp_test(unit/policy/policy_test LIBS mp_policy)
mp_test(unit/policy/predict_prefetch_test LIBS mp_policy)
mp_test(unit/policy/assign/presched_test LIBS mp_policy)
if(TARGET moepager_mpi)
    # The one beside the module's compiler: the first in PATH may be another MPI's.
    get_filename_component(mpirun ${MPI_C_COMPILER} DIRECTORY)
    set(mpirun ${mpirun}/mpirun)
    if(NOT EXISTS ${mpirun})
        set(mpirun mpirun)
    endif()
endif()
# Sanitizers see ranks as threads, but for two under mpirun. What MPI itself leaks is suppressed, for
# which stacks have to lead through libraries without frame pointers.
if(TARGET moepager_mpi AND MP_SANITIZE STREQUAL "address")
    add_test(NAME system/cluster/cluster_mpi_full:two COMMAND
        tests/system/cluster/cluster_mpi_test.py two $<TARGET_FILE:moepager> ${mpirun}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/cluster/cluster_mpi_full:two PROPERTIES TIMEOUT 300
        SKIP_RETURN_CODE 77 LABELS full ENVIRONMENT
        "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/.ci/lsan.supp:print_suppressions=0;ASAN_OPTIONS=fast_unwind_on_malloc=0")
endif()
if(TARGET moepager_mpi AND NOT sanitizers AND NOT MP_COVERAGE)
    # Ranks that die need an MPI that goes on then: the program again, beside a module for the one
    # that `tools/install_deps --ulfm` fetches. Without, these tests are skipped.
    set(survivor $<TARGET_FILE:moepager> ${mpirun})
    set(ulfm ${PROJECT_SOURCE_DIR}/build/ulfm)
    if(EXISTS ${ulfm}/bin/mpirun)
        get_target_property(module_sources moepager_mpi SOURCES)
        add_library(moepager_mpi_ulfm MODULE ${module_sources})
        target_include_directories(moepager_mpi_ulfm BEFORE PRIVATE ${ulfm}/include)
        target_link_libraries(moepager_mpi_ulfm PRIVATE mp_options ${ulfm}/lib/libmpi.so)
        set_target_properties(moepager_mpi_ulfm PROPERTIES OUTPUT_NAME moepager-mpi PREFIX lib
            LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/ulfm)
        add_custom_target(moepager_ulfm ALL COMMAND ${CMAKE_COMMAND} -E copy_if_different
            $<TARGET_FILE:moepager> ${CMAKE_BINARY_DIR}/ulfm/moepager)
        add_dependencies(moepager_ulfm moepager moepager_mpi_ulfm)
        set(survivor ${CMAKE_BINARY_DIR}/ulfm/moepager ${ulfm}/bin/mpirun)
    endif()
    foreach(part placements trace deaths returns)
        set(words $<TARGET_FILE:moepager> ${mpirun})
        if(part MATCHES "deaths|returns")
            set(words ${survivor})
        endif()
        add_test(NAME system/cluster/cluster_mpi_test:${part} COMMAND
            tests/system/cluster/cluster_mpi_test.py ${part} ${words}
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(system/cluster/cluster_mpi_test:${part} PROPERTIES TIMEOUT 300
            SKIP_RETURN_CODE 77)
    endforeach()
    if(MHD_FOUND)
        foreach(part answers deaths returns)
            set(words $<TARGET_FILE:moepager> ${mpirun})
            if(part MATCHES "deaths|returns")
                set(words ${survivor})
            endif()
            add_test(NAME system/cluster/serve_cluster_test:${part} COMMAND
                tests/system/cluster/serve_cluster_test.py ${part} ${words}
                WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
            set_tests_properties(system/cluster/serve_cluster_test:${part} PROPERTIES TIMEOUT 300
                SKIP_RETURN_CODE 77)
        endforeach()
    endif()
    foreach(part stop stop_first stop_lost)
        add_test(NAME system/cluster/cluster_mpi_full:${part} COMMAND
            tests/system/cluster/cluster_mpi_test.py ${part} $<TARGET_FILE:moepager> ${mpirun}
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(system/cluster/cluster_mpi_full:${part} PROPERTIES TIMEOUT 300
            SKIP_RETURN_CODE 77 LABELS full RUN_SERIAL ON)
    endforeach()
    add_executable(system_cluster_mpi_queue_test tests/system/cluster/mpi_queue_test.c
        engine/cluster/mpi_listen.c engine/cluster/mpi_module.c engine/cluster/mpi_restart.c)
    target_link_libraries(system_cluster_mpi_queue_test PRIVATE mp_options MPI::MPI_C)
    add_test(NAME system/cluster/mpi_queue_test COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root
        --oversubscribe -n 2 --mca btl tcp,self $<TARGET_FILE:system_cluster_mpi_queue_test>)
    set_tests_properties(system/cluster/mpi_queue_test PROPERTIES TIMEOUT 60)
    # The same over links of namespaces, in a short form.
    add_test(NAME system/cluster/testbed COMMAND tools/cluster/testbed --requests 3
        --place uniform,prism --simulate --program $<TARGET_FILE:moepager> --mpirun ${mpirun}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/cluster/testbed PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77)
    add_test(NAME system/cluster/testbed_full:cut COMMAND tools/cluster/testbed --requests 300
        --place uniform,prism --cut 8 --program $<TARGET_FILE:moepager> --mpirun ${mpirun}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/cluster/testbed_full:cut PROPERTIES TIMEOUT 300
        SKIP_RETURN_CODE 77 LABELS full RUN_SERIAL ON)
endif()
if(TARGET moepager_mpi)
    mp_test(unit/engine/cluster/mpi_module_test LIBS mp_engine MPI::MPI_C WRAP LABELS fault)
endif()
mp_test(unit/engine/cluster/mpi_listen_test LIBS mp_base SOURCES engine/cluster/mpi_listen.c)
mp_test(unit/engine/cluster/cluster_requests_test LIBS mp_engine m WRAP)
mp_test(unit/engine/cluster/cluster_message_test LIBS mp_engine m)
mp_test(unit/engine/cluster/cluster_choose_test LIBS mp_engine m)
mp_test(unit/engine/cluster/cluster_redo_test LIBS mp_engine m)
mp_test(model/cluster/cluster_fault_test LIBS mp_engine m SOURCES tests/model/cluster/team.c
    tests/model/cluster/loopback.c tests/model/harness.c tests/support/npy.c WRAP TIMEOUT 120)
mp_test(model/cluster/cluster_loss_test LIBS mp_engine m SOURCES tests/model/cluster/team.c
    tests/model/cluster/loopback.c tests/model/harness.c tests/support/npy.c TIMEOUT 240)
mp_test(model/cluster/cluster_hello_test LIBS mp_engine m SOURCES tests/model/cluster/loopback.c
    tests/model/harness.c tests/support/npy.c)
mp_test(model/cluster/cluster_fetch_test LIBS mp_engine m SOURCES tests/model/cluster/loopback.c
    tests/model/harness.c tests/support/npy.c)
mp_test(model/cluster/cluster_move_test LIBS mp_engine m SOURCES tests/model/cluster/loopback.c
    tests/model/harness.c tests/support/npy.c)
mp_test(model/cluster/cluster_test LIBS mp_engine m SOURCES tests/model/cluster/team.c
    tests/model/cluster/loopback.c tests/model/harness.c tests/support/npy.c VARIANTS ranks models
    changes few matrix TIMEOUT 300)
set_tests_properties(model/cluster/cluster_test:matrix PROPERTIES LABELS full TIMEOUT 3000)
# 256 devices with 48 layers of 128 experts, within minutes.
add_test(NAME system/cluster/simulate_many COMMAND $<TARGET_FILE:moepager> simulate --json
    --cluster tools/machines/many-servers.cluster --place uniform,prism
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/cluster/simulate_many PROPERTIES TIMEOUT 300 LABELS full
    PASS_REGULAR_EXPRESSION "\"devices\": 256.*\"place\": \"prism\"")
mp_test(unit/policy/place/place_test LIBS mp_policy m WRAP TIMEOUT 300)
mp_test(unit/policy/partition/partition_test LIBS mp_policy)
mp_test(unit/policy/partition/fixed_point_test LIBS mp_policy)
mp_test(unit/policy/evict_fading_test LIBS mp_policy)
mp_test(unit/policy/activation_test LIBS mp_policy m)
mp_test(unit/policy/auto_test LIBS mp_policy)
mp_test(unit/policy/assign/cost_test LIBS mp_policy)
mp_test(unit/policy/prefetch/idle_test LIBS mp_policy)
mp_test(unit/policy/auto_time_test LIBS mp_policy TIMEOUT 300)
mp_test(unit/policy/replay/replay_test LIBS mp_policy)
mp_test(unit/policy/replay/replay_curve_test LIBS mp_policy TIMEOUT 300)
mp_test(unit/policy/route/route_test LIBS mp_policy)
mp_test(unit/policy/route/smoe_test LIBS mp_policy)
mp_test(unit/policy/route/smoe_alpha_test LIBS mp_policy)
mp_test(unit/policy/evict/score_test LIBS mp_policy)
mp_test(unit/policy/pager/step_test LIBS mp_policy m SOURCES tests/unit/policy/pager/pager_world.c)
mp_test(unit/policy/pager/step_refusals_test LIBS mp_policy m SOURCES tests/unit/policy/pager/pager_world.c)
mp_test(unit/policy/template_test LIBS mp_policy SOURCES policy/template.c tests/unit/policy/pager/pager_world.c)
mp_test(unit/policy/record/trace_test LIBS mp_policy m WRAP LABELS fault)

# Each is named for what was broken, with symptom and cause at its head.
foreach(name bench_context batch_text_with_nul info_of_large_model second_output_fails
    unused_at_the_end switch_with_value refused_before_loading flag_with_underscore full_disk
    bench_is_one_run same_file errors_as_json
    misleading_messages hostile_vocabulary auto_budget_in_a_limit)
    mp_test(system/regress/${name} LIBS mp_base PkgConfig::JANSSON m SOURCES tests/system/cli/cli.c
        ARGS $<TARGET_FILE:moepager> LABELS cli TIMEOUT 120)
    add_dependencies(system_regress_${name} moepager)
endforeach()

include(tests/unit/interpose/interpose.cmake)
include(tests/static/static.cmake)
include(tests/interpose/interpose.cmake)

add_test(NAME system/tools/bench_table COMMAND python3 tests/system/tools/bench_table.py
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME system/tools/plot COMMAND python3 tests/system/tools/plot.py
    $<TARGET_FILE:moepager> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME system/tools/python COMMAND python3 tests/system/tools/python.py
    $<TARGET_FILE:moepager> ${PROJECT_VERSION} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/python PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME system/tools/bench_programs COMMAND python3 tests/system/tools/bench_programs.py
    $<TARGET_FILE:moepager> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/bench_programs PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
add_test(NAME system/tools/bench_model COMMAND python3 tests/system/tools/bench_model.py $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/bench_model PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)

if(NOT sanitizers)
    # Peaks of memory are promised for what people run.
    add_test(NAME system/memory/run COMMAND python3 tests/system/memory/run.py $<TARGET_FILE:moepager>
        ${CMAKE_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/memory/run PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS memory)
endif()
