/*
 * Trace files of both formats. What is accepted must be consistent, and no policy may find more in
 * it than the bound allows.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "policy/replay/replay.h"
#include "tests/fuzz/fuzz.h"
#include "vmm/base/error.h"

#define UNITS_MAX 4096
#define USES_MAX 2000

static void check_trace(const struct mp_replay_trace *t)
{
    uint64_t tokens = 0;

    FUZZ_CHECK(t->layers >= 1 && t->layers <= 4096 && t->experts >= 1 && t->experts <= 4096);
    FUZZ_CHECK(t->top_k >= 1 && t->top_k <= 64 && t->top_k <= t->experts);
    for (uint32_t l = 0; l < t->layers; l++)
        FUZZ_CHECK(t->layer_bytes[l] >= 1 && t->layer_bytes[l] <= t->expert_bytes);
    for (size_t g = 0; g < t->group_count; g++) {
        const struct mp_replay_group *group = &t->groups[g];

        FUZZ_CHECK(group->layer < t->layers && group->count >= 1);
        FUZZ_CHECK((size_t)group->first + group->count <= t->use_count);
        FUZZ_CHECK(group->tokens >= 1 && group->tokens <= t->tokens_max);
        FUZZ_CHECK(t->scores == NULL || group->first_row + group->tokens <= t->scored);
        for (uint32_t i = 0; i < group->count; i++) {
            const struct mp_replay_use *use = &t->uses[group->first + i];

            FUZZ_CHECK(use->id / t->experts == group->layer && use->tokens >= 1);
            FUZZ_CHECK(use->next == MP_REPLAY_NEVER || use->next > g);
            tokens += use->tokens;
        }
    }
    FUZZ_CHECK(tokens == t->choices);
}

static void check_replay(const struct mp_replay_trace *trace)
{
    static const char *const evicts[] = { "belady", "lru", "layer-lfu" };
    struct mp_replay_config config = { .partition = "global" };
    struct mp_replay_result r;

    config.budget_bytes = trace->total_bytes / 3;
    for (size_t i = 0; i < sizeof(evicts) / sizeof(evicts[0]); i++) {
        config.evict = evicts[i];
        if (mp_replay(trace, &config, &r) != MP_OK) {
            FUZZ_CHECK(!strcmp(mp_error_last()->code, "E_REPLAY"));
            continue;
        }
        FUZZ_CHECK(r.decode_hits <= r.bound_decode_hits && r.hits <= r.lookups);
        FUZZ_CHECK(r.lookups == trace->use_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    struct mp_replay_trace trace;
    char path[64];
    enum mp_status status;

    if (fd < 0)
        fd = memfd_create("trace", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    FUZZ_CHECK(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    mp_error_clear();
    status = mp_replay_trace_read(path, &trace);
    if (status != MP_OK) {
        FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_UNSUPPORTED ||
                   status == MP_ERR_NO_MEMORY);
        FUZZ_CHECK(mp_error_last()->status == status && mp_error_last()->text[0] != '\0');
        return 0;
    }
    check_trace(&trace);
    if (trace.layers * trace.experts <= UNITS_MAX && trace.use_count <= USES_MAX)
        check_replay(&trace);
    mp_replay_trace_fini(&trace);
    return 0;
}
