# Checks of the tree itself, and of what was generated or built from it.
foreach(check check_layers check/source check/errors check/docs check/security)
    string(REPLACE check/ check_ test ${check})
    add_test(NAME static/${test} COMMAND tools/${check}.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(static/${test} PROPERTIES LABELS static)
endforeach()
add_test(NAME system/tools/without_git COMMAND tests/system/tools/without_git.sh
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/without_git PROPERTIES LABELS static)
add_test(NAME system/tools/fetch_ptxas COMMAND tests/system/tools/fetch_ptxas.sh
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/fetch_ptxas PROPERTIES LABELS static SKIP_RETURN_CODE 77)
add_test(NAME static/make_ptx COMMAND tools/make_ptx --check
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/make_ptx PROPERTIES LABELS static SKIP_RETURN_CODE 77)
add_test(NAME static/make_ptx_full COMMAND tools/make_ptx --verify WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/make_ptx_full PROPERTIES LABELS full SKIP_RETURN_CODE 77)
add_test(NAME static/ptx_early COMMAND python3 tools/ptx_early.py WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/ptx_early PROPERTIES LABELS static)
# Each PTX (mp_ptx) for all architectures: a test for each source, with its tensor_*.ptx.
foreach(ptx IN LISTS mp_ptx)
    get_filename_component(name ${ptx} NAME_WE)
    if(NOT name MATCHES "^tensor_")
        add_test(NAME static/ptxas:${name} COMMAND tools/make_ptx --assemble ${name}
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        set_tests_properties(static/ptxas:${name} PROPERTIES LABELS static SKIP_RETURN_CODE 77
            COST -2) # last, beside system/tools/gpu_run_all, each on one processor
        list(APPEND mp_ptxas_tests static/ptxas:${name})
    endif()
endforeach()
set_tests_properties(static/ptxas:kernels PROPERTIES COST -1.5)
add_test(NAME static/ptxas:tables COMMAND tools/make_ptx --tables WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/ptxas:tables PROPERTIES LABELS static SKIP_RETURN_CODE 77 TIMEOUT 3600
    DEPENDS "${mp_ptxas_tests}") # what they have assembled is kept
add_test(NAME static/ptxas_full COMMAND tools/make_ptx --report WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/ptxas_full PROPERTIES LABELS full SKIP_RETURN_CODE 77 TIMEOUT 3600)
add_test(NAME static/mutation COMMAND python3 tests/mutation/run.py --check ${PROJECT_BINARY_DIR}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/mutation PROPERTIES LABELS static)
add_test(NAME static/make_pictures COMMAND tools/make_pictures --check
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/make_pictures PROPERTIES LABELS static)
add_test(NAME static/make_transcripts COMMAND tools/make_transcripts --check
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/make_transcripts PROPERTIES LABELS static)
add_test(NAME static/check_options COMMAND tools/check/options.sh $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/check_options PROPERTIES LABELS static)
add_test(NAME static/check_exports COMMAND tools/check/exports.sh $<TARGET_FILE:moepager_shared>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(static/check_exports PROPERTIES LABELS static)

add_test(NAME system/tools/release COMMAND tests/system/tools/release.sh ${PROJECT_BINARY_DIR}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(system/tools/release PROPERTIES SKIP_RETURN_CODE 77)

# A program outside the tree has none of our instrumentation, so only plain builds are installed.
if(NOT MP_SANITIZE AND NOT MP_COVERAGE)
    add_test(NAME system/install/install_test COMMAND tests/system/install/install_test.sh ${PROJECT_BINARY_DIR}
        ${CMAKE_C_COMPILER} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/install/install_test PROPERTIES TIMEOUT 600)
    add_test(NAME system/install/package_test COMMAND tests/system/install/package_test.sh
        ${PROJECT_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(system/install/package_test PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()

# Sees the library from outside: no include path but the header's own, no static library.
foreach(test moepager_test moepager_events_test)
    add_executable(unit_policy_${test} tests/unit/policy/${test}.c tests/unit/policy/moepager_model.c)
    target_include_directories(unit_policy_${test} PRIVATE policy)
    target_link_libraries(unit_policy_${test} PRIVATE moepager_shared mp_options)
    add_test(NAME unit/policy/${test} COMMAND unit_policy_${test} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(unit/policy/${test} PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
endforeach()
include(tests/system/cli/cli.cmake)
