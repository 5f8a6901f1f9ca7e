# The interposer in programs that are not ours. tools/get_llama brings those; where they cannot be
# had, each test says so and counts as skipped; so do those of transformers without torch. A
# sanitizer's runtime cannot come after a program's start, so plain builds only. What ends in _full
# takes long: tools/test --full.
if(NOT sanitizers AND NOT MP_COVERAGE)
    foreach(file behaviour files programs transformers)
        set(cases_behaviour idle refused alone kills crowd memory limits others secure report execs
            seccomp dlopen static)
        set(cases_files mapping changed reads disk broken pieces)
        set(cases_programs logits sources several checks records unmapped bench text perplexity server
            openai compare)
        set(full_behaviour kills idle limits sanitized)
        set(full_files mapping reads broken)
        set(full_programs logits sources several checks bench text perplexity server openai python)
        set(cases_transformers logits touches write fork single)
        set(full_transformers logits touches write fork single)
        foreach(case ${cases_${file}})
            add_test(NAME interpose/${file}:${case} COMMAND python3 tests/interpose/${file}_test.py
                ${case} $<TARGET_FILE:moepager_preload> ${CMAKE_BINARY_DIR}
                WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
            set_tests_properties(interpose/${file}:${case} PROPERTIES TIMEOUT 300
                SKIP_RETURN_CODE 77 LABELS interpose)
        endforeach()
        foreach(case ${full_${file}})
            add_test(NAME interpose/${file}_full:${case} COMMAND python3
                tests/interpose/${file}_test.py --full ${case} $<TARGET_FILE:moepager_preload>
                ${CMAKE_BINARY_DIR} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
            set_tests_properties(interpose/${file}_full:${case} PROPERTIES TIMEOUT 3600
                SKIP_RETURN_CODE 77 LABELS "interpose;full")
        endforeach()
    endforeach()
    # Of times and of memory, and programs of many threads: nothing else beside them.
    set_tests_properties(interpose/behaviour:idle interpose/behaviour:crowd
        interpose/behaviour:memory interpose/files:pieces PROPERTIES RUN_SERIAL ON)
endif()

add_test(NAME interpose/module COMMAND python3 tests/interpose/module_test.py interpose/python
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(interpose/module PROPERTIES TIMEOUT 60 LABELS interpose)
