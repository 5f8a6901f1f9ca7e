# The interposer's table, called as a program's hooks call it.
set(made_up tests/unit/interpose/made_up.c tests/support/ggml_tensors.c tests/support/gguf.c)
mp_test(unit/interpose/window_test LIBS mp_interpose SOURCES ${made_up}
    VARIANTS expert router touches TIMEOUT 120)
mp_test(unit/interpose/window_fault_test LIBS mp_interpose SOURCES ${made_up}
    WRAP LABELS fault TIMEOUT 200)
mp_test(unit/interpose/window_closed_test LIBS mp_interpose SOURCES
    ${made_up} TIMEOUT 120)
mp_test(unit/interpose/calls_test LIBS mp_interpose SOURCES ${made_up} TIMEOUT 60)
mp_test(unit/interpose/pieces_test LIBS mp_interpose Threads::Threads SOURCES ${made_up} TIMEOUT 60)
mp_test(unit/interpose/moves_test LIBS mp_interpose)
mp_test(unit/interpose/room_test LIBS mp_interpose SOURCES ${made_up} TIMEOUT 60)
mp_test(unit/interpose/report_test LIBS mp_interpose PkgConfig::JANSSON
    SOURCES ${made_up} VARIANTS text json touches)
mp_test(unit/interpose/settings_test LIBS mp_interpose)
mp_test(unit/interpose/experts_test LIBS mp_interpose
    SOURCES tests/support/gguf.c tests/model/tiny_model.c)
add_dependencies(unit_interpose_experts_test moepager_safetensors)
mp_test(unit/interpose/ggml_test LIBS mp_interpose)
mp_test(unit/interpose/uploads_test LIBS mp_interpose Threads::Threads
    SOURCES ${made_up})
mp_test(unit/interpose/scores_test LIBS mp_interpose SOURCES ${made_up}
    tests/unit/interpose/family.c TIMEOUT 60)
mp_test(unit/interpose/models_test LIBS mp_interpose SOURCES ${made_up}
    tests/unit/interpose/family.c VARIANTS expert router TIMEOUT 120)
mp_test(unit/interpose/families_test LIBS mp_interpose SOURCES ${made_up}
    tests/unit/interpose/family.c TIMEOUT 60)
mp_test(unit/interpose/safetensors_test LIBS mp_interpose)
add_dependencies(unit_interpose_safetensors_test moepager_safetensors)
