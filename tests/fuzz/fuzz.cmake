# mp_fuzz(st_header_fuzz LIBS mp_engine [SOURCES more.c])
# builds tests/fuzz/st_header_fuzz.c with libFuzzer. Add the target to tests/fuzz/targets too.
function(mp_fuzz name)
    cmake_parse_arguments(T "" "" "LIBS;SOURCES" ${ARGN})
    add_executable(${name} tests/fuzz/${name}.c ${T_SOURCES})
    target_link_libraries(${name} PRIVATE ${T_LIBS} mp_options)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MP_FUZZ needs clang: cmake --preset fuzz")
endif()

mp_fuzz(canary_fuzz)
mp_fuzz(config_json_fuzz LIBS mp_engine m)
mp_fuzz(replay_trace_fuzz LIBS mp_policy)
mp_fuzz(st_header_fuzz LIBS mp_engine SOURCES tests/fuzz/st_header_mutator.c)
mp_fuzz(tokenize_text_fuzz LIBS mp_engine m)
mp_fuzz(tokenizer_json_fuzz LIBS mp_engine m)
