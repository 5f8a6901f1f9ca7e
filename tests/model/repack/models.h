#ifndef MP_TESTS_REPACK_MODELS_H
#define MP_TESTS_REPACK_MODELS_H

/* The models that are repacked, and names for the results. */
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

static const struct {
    const char *model, *expect;
    uint64_t small_shard_bytes; /* that cuts the model into several files */
    bool shards;                /* already in several */
} models[] = {
    { "tests/data/models/mixtral-tiny", "tests/data/models/mixtral-tiny/expect", 70000, false },
    { "tests/data/models/qwen2moe-tiny", "tests/data/models/qwen2moe-tiny/expect", 50000, false },
    { "tests/data/models/qwen3moe-tiny", "tests/data/models/qwen3moe-tiny/expect", 50000, false },
    { "tests/data/models/qwen3moe-tiny-nonorm", "tests/data/models/qwen3moe-tiny-nonorm/expect",
      50000, true },
    { "models/tiny-moe", "tests/data/models/tiny-moe-expect", 3 << 20, false },
};

/* A name in the directory of this test that was not given before. */
static inline const char *fresh(void)
{
    static char paths[128][sizeof(test_tmpdir_path) + 32];
    static unsigned count;

    CHECK(count < 128);
    snprintf(paths[count], sizeof(paths[0]), "%s/d%u", test_tmpdir(), count);
    return paths[count++];
}

#endif
