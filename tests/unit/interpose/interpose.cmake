# The interposer's table, called as a program's hooks call it.
mp_test(unit/interpose/window_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/support/gguf.c VARIANTS expert router touches TIMEOUT 120)
mp_test(unit/interpose/window_fault_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/support/gguf.c WRAP LABELS fault TIMEOUT 200)
mp_test(unit/interpose/moves_test LIBS mp_interpose)
mp_test(unit/interpose/scores_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c TIMEOUT 60)
mp_test(unit/interpose/models_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c VARIANTS expert router TIMEOUT 120)
mp_test(unit/interpose/families_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/unit/interpose/family.c tests/support/gguf.c TIMEOUT 60)
mp_test(unit/interpose/safetensors_test LIBS mp_interpose)
add_dependencies(unit_interpose_safetensors_test moepager_safetensors)
