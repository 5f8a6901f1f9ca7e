# The interposer's table, called as a program's hooks call it.
mp_test(unit/interpose/window_test LIBS mp_interpose SOURCES tests/unit/interpose/made_up.c
    tests/support/gguf.c VARIANTS expert router touches TIMEOUT 120)
