/*
 * Decision logs. Whatever they say, policies get nothing that breaks them, and a refusal has a
 * code and a printable text.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "policy/record/decisions.h"
#include "tests/fuzz/text.h"
#include "vmm/base/error.h"

#define TABLE_MAX (1u << 20)

/* A model of this size is what policies allocate for; the fuzzer's memory is smaller than ours. */
static bool is_small(const uint8_t *data, size_t bytes)
{
    char head[160];
    unsigned layers, experts, top_k, tokens, slots;

    snprintf(head, sizeof(head), "%.*s", bytes < 150 ? (int)bytes : 150, (const char *)data);
    return sscanf(head,
                  "%*[^\n]\nabi %*u\nlayers %u\nexperts %u\ntop_k %u\ntokens_max %u\nslots %u",
                  &layers, &experts, &top_k, &tokens, &slots) != 5 ||
           (layers <= 4096 && experts <= 4096 && tokens <= 65536 && slots <= TABLE_MAX &&
            (uint64_t)layers * experts * experts <= TABLE_MAX &&
            (uint64_t)tokens * experts <= TABLE_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    struct mp_decisions_report report;
    const struct mp_error *error;
    uint64_t calls = 0;
    char path[64];
    enum mp_status status;

    if (fd < 0)
        fd = memfd_create("log", MFD_CLOEXEC);
    if (!is_small(data, bytes))
        return 0;
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    FUZZ_CHECK(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    mp_error_clear();
    status = mp_decisions_replay(path, NULL, &report);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        calls += report.calls_of[kind];
    FUZZ_CHECK(report.results <= calls && calls <= report.calls);
    FUZZ_CHECK(status != MP_OK || mp_decisions_is_log(path));
    error = mp_error_last();
    FUZZ_CHECK(status == MP_OK || (error->status == status && error->code[0] == 'E'));
    if (status != MP_OK)
        fuzz_check_message(error->text);
    return 0;
}
