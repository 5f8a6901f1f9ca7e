#ifndef MP_TESTS_TWIN_RUNS_H
#define MP_TESTS_TWIN_RUNS_H

#include "tests/model/gguf/twins.h"

/* Running a model as a directory and as a GGUF file. Failures end the test. */

/* How the GGUF file is written: as in struct to_gguf. */
struct twin_how {
    bool whole_latent, fused;
    const float *divisors;
};

/* Logits of a prompt and steps behind it; the caller frees them. */
float *twin_logits(const char *model, uint64_t budget_bytes, size_t *bytes_p);

/* The directory, with another config.json if that is not NULL, and the file that is made of it, in
 * several alignments and versions of the format, whole and in parts, at three budgets, give the
 * same bits. how: NULL: as newer converters do it. */
void twin_check(const char *source, const char *arch, const char *config,
                const struct twin_how *how);

/* The directory itself: with another config.json, and routers in F32 as converters write them. */
void twin_directory(const char *source, const char *out, const char *config);

/* A model's config.json, in which texts are replaced, in pairs, where they first occur. */
const char *twin_config(const char *model, const char *const *pairs);

/* A model's config.json with other values of these keys, as JSON. The caller frees it. */
char *twin_changed_config(const char *model, const char *changes);

#endif
