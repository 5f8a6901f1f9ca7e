#ifndef MP_PRELOAD_CHECK_H
#define MP_PRELOAD_CHECK_H

#include <limits.h>
#include <stdio.h>

#include "engine/preload/launch.h"
#include "vmm/topo/memory_room.h"

/*
 * Predicts what preloading would do for a command, without starting it: which program it is, which
 * libraries it loads, which hooks bind, which model files its arguments name and how many of their
 * bytes are experts, the effective budget, and obstacles.
 *
 *     check.c          the result as a whole, and obstacles
 *     check_program.c  programs and libraries
 *     check_model.c    model files
 *     check_print.c    text and JSON
 */
#define MP_CHECK_LIBRARIES_MAX 64u
#define MP_CHECK_MODELS_MAX 8u
#define MP_CHECK_KINDS_MAX 16u
#define MP_CHECK_NOTES_MAX 24u

enum mp_check_start { MP_CHECK_DYNAMIC, MP_CHECK_STATIC, MP_CHECK_FOREIGN, MP_CHECK_UNKNOWN };

/* A library that is relevant for paging: of ggml, llama.cpp, CUDA or PyTorch. */
struct mp_check_library {
    char path[PATH_MAX]; /* the bare name if it was not found */
    bool found;
    bool module; /* opened at run time by another, as ggml's backends are */
};

struct mp_check_program {
    char path[PATH_MAX]; /* as found through PATH; the script's, not its interpreter's */
    char
        loaded[PATH_MAX]; /* the file that is really started, by the kernel or an explicit loader */
    char interpreter[PATH_MAX];
    char error[256]; /* why it cannot be inspected, else empty */
    enum mp_check_start start;
    bool privileged, python, isolated; /* isolated: Python that ignores PYTHONPATH */
    struct mp_check_library libraries[MP_CHECK_LIBRARIES_MAX];
    uint32_t library_count;
    bool missing;   /* one of them was not found: hooks in it are not known */
    bool hooks[32]; /* those of mp_check_hooks that a library has */
};

/* Hooked functions outside libc; NULL-terminated. */
extern const char *const mp_check_hooks[];

/* Bytes of one type in the experts of a layer. */
struct mp_check_kind {
    char type[16];
    uint64_t bytes;
};

struct mp_check_layer {
    uint32_t layer;
    uint64_t bytes;
};

struct mp_check_model {
    char path[PATH_MAX];
    char error[512]; /* why it cannot be read, else empty */
    bool gguf;
    uint32_t layer_count, experts; /* experts: of a layer */
    struct mp_check_layer *layers; /* (layer_count) in order; owned */
    uint64_t expert_bytes, dense_bytes;
    uint64_t single_bytes; /* of expert_bytes: in tensors of one expert, which are not paged */
    struct mp_check_kind kinds[MP_CHECK_KINDS_MAX];
    uint32_t kind_count;
};

/* An obstacle, and what to do about it. `fatal`: nothing is paged. */
struct mp_check_note {
    bool fatal;
    char text[400];
};

struct mp_check {
    struct mp_check_program program;
    struct mp_check_model models[MP_CHECK_MODELS_MAX];
    uint32_t model_count;
    bool names_model; /* also one that is not there */
    char library[PATH_MAX];
    struct mp_memory_room room;
    uint64_t maps_max, memlock_bytes, budget_bytes;
    bool everything; /* the budget holds all experts, or there are none: nothing changes */
    struct mp_check_note notes[MP_CHECK_NOTES_MAX];
    uint32_t note_count;
};

/* Allocates *check_p. MP_ERR_NO_MEMORY; everything else that is wrong becomes a note. */
enum mp_status mp_check_make(char **argv, const struct mp_settings *settings,
                             struct mp_check **check_p) MP_MUST_CHECK;
void mp_check_destroy(struct mp_check *check);

void mp_check_print(const struct mp_check *check, const struct mp_settings *settings, FILE *out);
void mp_check_json(const struct mp_check *check, const struct mp_settings *settings, FILE *out);

/* check_program.c: inspect the program that `argv` starts. */
void mp_check_look_at_program(const struct mp_environment *environment, char **argv,
                              struct mp_check_program *program);

/* Is it a program that no library can be preloaded into? False also where that is not known. */
bool mp_check_is_static(const char *path);

/* check_model.c. False: the path names no model. */
bool mp_check_look_at_model(const char *path, struct mp_check_model *model) MP_MUST_CHECK;

#endif
