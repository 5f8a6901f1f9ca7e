# The interposer's table, called as a program's hooks call it.
mp_test(unit/interpose/window_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/support/gguf.c VARIANTS expert router touches TIMEOUT 120)
mp_test(unit/interpose/window_fault_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/support/gguf.c WRAP LABELS fault TIMEOUT 200)
mp_test(unit/interpose/window_closed_test LIBS mp_interpose SOURCES
    tests/unit/interpose/made_up.c tests/support/gguf.c TIMEOUT 120)
mp_test(unit/interpose/moves_test LIBS mp_interpose)
mp_test(unit/interpose/report_test LIBS mp_interpose PkgConfig::JANSSON
    SOURCES tests/unit/interpose/made_up.c tests/support/gguf.c VARIANTS text json)
mp_test(unit/interpose/settings_test LIBS mp_interpose)
mp_test(unit/interpose/experts_test LIBS mp_interpose
    SOURCES tests/support/gguf.c tests/model/tiny_model.c)
add_dependencies(unit_interpose_experts_test moepager_safetensors)
mp_test(unit/interpose/ggml_test LIBS mp_interpose)
mp_test(unit/interpose/uploads_test LIBS mp_interpose Threads::Threads
    SOURCES tests/unit/interpose/made_up.c tests/support/gguf.c)
mp_test(unit/interpose/scores_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c TIMEOUT 60)
mp_test(unit/interpose/models_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c VARIANTS expert router TIMEOUT 120)
mp_test(unit/interpose/families_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c TIMEOUT 60)
mp_test(unit/interpose/safetensors_test LIBS mp_interpose)
add_dependencies(unit_interpose_safetensors_test moepager_safetensors)
