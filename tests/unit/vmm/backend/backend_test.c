/* The contract of all backends, and the wrappers around them. */
#include "tests/support/test.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/support/fault/wrap.h"
#include "vmm/backend/backend.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define MIB (UINT64_C(1) << 20)

static const struct mp_backend_config anywhere = { .numa_node = -1, .huge_pages = true };

static struct mp_backend *open_chain(const char *chain)
{
    struct mp_backend *backend = NULL;

    CHECK_EQ(mp_backend_open(chain, &anywhere, &backend), MP_OK);
    CHECK(backend != NULL);
    return backend;
}

static bool is_mapped(const void *address, uint64_t bytes)
{
    return msync((void *)(uintptr_t)address, bytes, MS_ASYNC) == 0 || errno != ENOMEM;
}

static void every_built_in_keeps_the_contract_of_its_table(void)
{
    size_t count = 0;

    for (; mp_backends[count] != NULL; count++) {
        const struct mp_backend_ops *ops = mp_backends[count];

        CHECK(ops->name[0] != '\0' && strchr(ops->name, ':') == NULL);
        CHECK(ops->summary[0] != '\0' && strchr(ops->summary, '\n') == NULL);
        CHECK(ops->open != NULL && ops->close != NULL && ops->memory_info != NULL);
        CHECK(ops->frame_create != NULL && ops->frame_destroy != NULL);
        for (size_t i = 0; i < count; i++)
            CHECK(strcmp(mp_backends[i]->name, ops->name) != 0);
    }
    CHECK(count >= 3);
    CHECK_STR(mp_tier_kind_name(MP_TIER_DEVICE), "device");
    CHECK_STR(mp_tier_kind_name(MP_TIER_KIND_COUNT), "unknown tier");
}

static void chains_open_in_the_order_of_their_names(void)
{
    static const char *const good[] = { "host", "trace:host", "fault:host", "fault:trace:host",
                                        "trace:trace:fault:host" };

    for (size_t i = 0; i < MP_ARRAY_LEN(good); i++) {
        struct mp_backend *backend = open_chain(good[i]);
        const size_t first = strcspn(good[i], ":");

        CHECK(strlen(backend->ops->name) == first);
        CHECK(strncmp(backend->ops->name, good[i], first) == 0);
        CHECK(backend->caps.granule_bytes >= 4096);
        CHECK_EQ(backend->caps.granule_bytes & (backend->caps.granule_bytes - 1), 0);
        CHECK(backend->caps.tiers & 1u << MP_TIER_DEVICE);
        CHECK(backend->caps.frames_max > 1000 && backend->caps.frame_bytes_max > 1024 * MIB);
        mp_backend_close(backend);
    }
    mp_backend_close(NULL);
}

static void bad_chains_are_refused_with_the_names_that_exist(void)
{
    static const char *const bad[] = { "",     "opencl", "host:",      "host:host",
                                       ":",    "trace:", "trace",      "trace::host",
                                       "Host", " host",  "trace:host:" };
    char longest[300];

    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        struct mp_backend *backend = NULL;

        mp_error_clear();
        CHECK_EQ(mp_backend_open(bad[i], &anywhere, &backend), MP_ERR_CONFIG);
        CHECK(backend == NULL);
        CHECK_STR(mp_error_last()->code, "E_BACKEND");
        CHECK(strstr(mp_error_last()->text, "host, cuda, trace:, fault:") != NULL);
    }
    memset(longest, 't', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    CHECK_EQ(mp_backend_open(longest, &anywhere, &(struct mp_backend *){ NULL }), MP_ERR_CONFIG);
    CHECK_EQ(mp_backend_open("trace:trace:trace:trace:trace:trace:trace:trace:host", &anywhere,
                             &(struct mp_backend *){ NULL }),
             MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "too many wrappers") != NULL);
}

static void frames_are_aligned_writable_and_gone_when_destroyed(void)
{
    static const uint64_t sizes[] = { 4096,           12 * 4096, 2 * MIB - 4096, 2 * MIB,
                                      2 * MIB + 4096, 7 * MIB,   64 * MIB };
    struct mp_backend *host = open_chain("host");
    struct mp_frame frames[MP_ARRAY_LEN(sizes)];

    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++) {
        CHECK_EQ(host->ops->frame_create(host, MP_TIER_DEVICE, sizes[i], &frames[i]), MP_OK);
        CHECK(frames[i].handle != 0);
        CHECK_EQ(frames[i].bytes, sizes[i]);
        CHECK_EQ(frames[i].tier, MP_TIER_DEVICE);
        CHECK_EQ((uintptr_t)frames[i].alias % host->caps.alias_align_bytes, 0);
        if (sizes[i] >= 2 * MIB)
            CHECK_EQ((uintptr_t)frames[i].alias % (2 * MIB), 0);
        for (uint64_t at = 0; at < sizes[i]; at += 4096)
            memcpy((char *)frames[i].alias + at, &i, sizeof(i));
        ((char *)frames[i].alias)[sizes[i] - 1] = (char)i;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++) {
        for (uint64_t at = 0; at < sizes[i]; at += 4096)
            CHECK(memcmp((char *)frames[i].alias + at, &i, sizeof(i)) == 0);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++) {
        const void *alias = frames[i].alias;

        CHECK(is_mapped(alias, sizes[i]));
        host->ops->frame_destroy(host, &frames[i]);
        CHECK(!is_mapped(alias, sizes[i]));
        CHECK_EQ(frames[i].handle, 0);
    }
    mp_backend_close(host);
}

static void impossible_frames_are_refused(void)
{
    struct mp_backend *host = open_chain("host");
    struct mp_frame frame = { .handle = 77 };
    const uint64_t too_large = host->caps.frame_bytes_max + host->caps.granule_bytes;

    CHECK_EQ(host->ops->frame_create(host, MP_TIER_DEVICE, 0, &frame), MP_ERR_INVALID);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_DEVICE, 4097, &frame), MP_ERR_INVALID);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_FILE, 4096, &frame), MP_ERR_INVALID);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_HOST, too_large, &frame), MP_ERR_NO_SPACE);
    CHECK(strstr(mp_error_last()->text, "lower --budget") != NULL);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_HOST, UINT64_MAX - 4095, &frame),
             MP_ERR_NO_SPACE);
    CHECK_EQ(frame.handle, 77);
    mp_backend_close(host);
}

/* An address at which the kernel will map next time and that is no multiple of 2 MiB. */
static void *unaligned_hint(void)
{
    char *hole = mmap(NULL, 32 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(hole != MAP_FAILED);
    CHECK_EQ(munmap(hole, 32 * MIB), 0);
    hole += 2 * MIB - (uintptr_t)hole % (2 * MIB);
    return hole + 12288;
}

/* Alignment is paid with addresses, which go back whole; a kernel that refuses to cut them off
 * means no frame, and nothing stays mapped. */
static void what_alignment_maps_too_much_is_given_back(void)
{
    struct mp_backend *host = open_chain("host");
    struct mp_frame frame = { .handle = 0 };
    const uint64_t mapped = fault_mapped_bytes();

    fault_map_at(unaligned_hint());
    for (uint64_t n = 0;; n++) {
        enum mp_status status;

        fault_nth(FAULT_BIT(munmap), n);
        status = host->ops->frame_create(host, MP_TIER_DEVICE, 4 * MIB, &frame);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            CHECK_EQ(n, 2); /* before and behind the frame */
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_SPACE);
        CHECK_EQ(frame.handle, 0);
        CHECK_EQ(fault_mapped_bytes(), mapped);
        CHECK(strstr(mp_error_last()->text, "max_map_count") != NULL);
    }
    fault_map_at(NULL);
    CHECK_EQ((uintptr_t)frame.alias % (2 * MIB), 0);
    CHECK_EQ(fault_mapped_bytes(), mapped + 4 * MIB);
    host->ops->frame_destroy(host, &frame);
    CHECK_EQ(fault_mapped_bytes(), mapped);
    mp_backend_close(host);
}

static void refused_advice_costs_speed_only(void)
{
    const struct mp_backend_config config = { .numa_node = 0, .huge_pages = true };
    const struct fault_plan refused = {
        .mode = FAULT_ALWAYS,
        .calls = FAULT_BIT(madvise) | FAULT_BIT(mbind),
    };
    struct mp_backend *host = NULL;
    struct mp_frame frame;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    fault_begin(&refused);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_HOST, 4 * MIB, &frame), MP_OK);
    CHECK(fault_end() >= 1);
    memset(frame.alias, 1, frame.bytes);
    host->ops->frame_destroy(host, &frame);
    mp_backend_close(host);
}

static void memory_info_is_a_part_of_the_whole(void)
{
    struct mp_backend *host = open_chain("trace:host");
    uint64_t free_bytes = 0, total_bytes = 0;

    CHECK_EQ(host->ops->memory_info(host, MP_TIER_DEVICE, &free_bytes, &total_bytes), MP_OK);
    CHECK(free_bytes > 0 && free_bytes <= total_bytes);
    free_bytes = 1;
    CHECK_EQ(host->ops->memory_info(host, MP_TIER_FILE, &free_bytes, &total_bytes), MP_ERR_INVALID);
    CHECK_EQ(free_bytes, 1);
    mp_backend_close(host);
}

static void a_numa_node_is_used_or_refused_by_number(void)
{
    struct mp_backend_config config = { .numa_node = 0 };
    struct mp_backend *host = NULL;
    struct mp_frame frame;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    CHECK_EQ(host->ops->frame_create(host, MP_TIER_HOST, 4 * MIB, &frame), MP_OK);
    memset(frame.alias, 1, frame.bytes);
    host->ops->frame_destroy(host, &frame);
    mp_backend_close(host);

    config.numa_node = 100000;
    host = NULL;
    if (mp_backend_open("host", &config, &host) == MP_OK) {
        mp_backend_close(host); /* a kernel without NUMA: there are no nodes to refuse */
    } else {
        CHECK_EQ(mp_error_last()->status, MP_ERR_CONFIG);
        CHECK(host == NULL);
        CHECK(strstr(mp_error_last()->text, "node 100000") != NULL);
    }
}

static char logged[4096];

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    const size_t used = strlen(logged);

    (void)ctx;
    (void)level;
    snprintf(logged + used, sizeof(logged) - used, "%s\n", line);
}

static void trace_logs_every_call_with_its_result(void)
{
    struct mp_log_config config = { .levels = "trace" };
    struct mp_backend *backend;
    struct mp_frame frame;
    uint64_t free_bytes, total_bytes;

    CHECK_EQ(mp_log_init(&config), 0);
    mp_log_set_sink(keep_line, NULL);
    backend = open_chain("trace:host");
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_HOST, &free_bytes, &total_bytes), MP_OK);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 8192, &frame), MP_OK);
    backend->ops->frame_destroy(backend, &frame);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 1, &frame), MP_ERR_INVALID);
    mp_backend_close(backend);
    mp_log_set_sink(NULL, NULL);
    mp_log_fini();

    CHECK(strstr(logged, "open host") != NULL);
    CHECK(strstr(logged, "memory_info host free") != NULL);
    CHECK(strstr(logged, "frame_create device 8192 bytes") != NULL);
    CHECK(strstr(logged, "frame_create device 1 bytes") != NULL);
    CHECK(strstr(logged, ": invalid argument") != NULL);
    CHECK(strstr(logged, "frame_destroy device 8192 bytes") != NULL);
    CHECK(strstr(logged, "close host") != NULL);
}

static enum mp_status try_frame(struct mp_backend *backend)
{
    struct mp_frame frame = { .handle = 0 };
    const enum mp_status status = backend->ops->frame_create(backend, MP_TIER_DEVICE, 4096, &frame);

    CHECK_EQ(frame.handle != 0, status == MP_OK);
    if (status == MP_OK)
        backend->ops->frame_destroy(backend, &frame);
    return status;
}

static void fault_fails_the_chosen_calls_and_no_other(void)
{
    struct mp_backend *backend = open_chain("fault:host");

    CHECK_EQ(try_frame(backend), MP_OK);
    CHECK_EQ(mp_backend_fault_set(backend, 2, true, MP_ERR_NO_SPACE), 1);
    CHECK_EQ(try_frame(backend), MP_OK);
    CHECK_EQ(try_frame(backend), MP_OK);
    CHECK_EQ(try_frame(backend), MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_INJECTED");
    CHECK_EQ(try_frame(backend), MP_OK);

    CHECK_EQ(mp_backend_fault_set(backend, 1, false, MP_ERR_DEVICE), 4);
    CHECK_EQ(try_frame(backend), MP_OK);
    CHECK_EQ(try_frame(backend), MP_ERR_DEVICE);
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_DEVICE, &(uint64_t){ 0 }, &(uint64_t){ 0 }),
             MP_ERR_DEVICE);
    CHECK_EQ(mp_backend_fault_set(backend, -1, false, MP_OK), 3);
    CHECK_EQ(try_frame(backend), MP_OK);
    mp_backend_close(backend);
}

/* A process that makes a file larger than it may (ulimit -f) is ended. */
static void a_memory_file_beyond_the_limit_on_files_is_refused(void)
{
    struct mp_backend_config config = { .numa_node = -1, .memory_file_bytes = MIB + 4096 };
    struct mp_backend *backend;
    struct rlimit before, limit;

    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = MIB;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(mp_backend_open("host", &config, &backend), MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_DEVICE_MEMORY");
    config.memory_file_bytes = MIB;
    CHECK_EQ(mp_backend_open("host", &config, &backend), MP_OK);
    mp_backend_close(backend);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* Frames of a memory file are found in it by their aliases, and what is mapped from there is them.
 */
static void frames_of_a_memory_file_can_be_mapped_elsewhere(void)
{
    const struct mp_backend_config config = { .numa_node = -1, .memory_file_bytes = 2 * MIB };
    struct mp_frame frames[2];
    struct mp_backend *backend;
    uint64_t offset = 0;
    char *elsewhere;
    int fd;

    CHECK_EQ(mp_backend_open("host", &config, &backend), MP_OK);
    CHECK_EQ(mp_backend_host_file(backend, backend, &offset), -1);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, MIB, &frames[i]), MP_OK);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 4096, &(struct mp_frame){ 0 }),
             MP_ERR_NO_SPACE);
    memset((char *)frames[1].alias + 4096, 7, 4096);
    fd = mp_backend_host_file(backend, (char *)frames[1].alias + 4096, &offset);
    CHECK(fd >= 0);
    CHECK_EQ(offset, MIB + 4096);
    elsewhere = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    CHECK(elsewhere != MAP_FAILED);
    CHECK_EQ(elsewhere[4095], 7);
    memset(frames[1].alias, 9, 2 * 4096);
    CHECK_EQ(elsewhere[0], 9);
    backend->ops->frame_destroy(backend, &frames[1]);
    CHECK_EQ(elsewhere[0], 0); /* the memory is given back */
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, MIB, &frames[1]), MP_OK);
    for (int i = 2; i-- > 0;)
        backend->ops->frame_destroy(backend, &frames[i]);
    munmap(elsewhere, 4096);
    mp_backend_close(backend);
    backend = open_chain("host");
    CHECK_EQ(mp_backend_host_file(backend, backend, &offset), -1);
    mp_backend_close(backend);
    backend = open_chain("trace:host");
    CHECK_EQ(mp_backend_host_file(backend, backend, &offset), -1);
    mp_backend_close(backend);
}

int main(void)
{
    RUN(a_memory_file_beyond_the_limit_on_files_is_refused);
    RUN(frames_of_a_memory_file_can_be_mapped_elsewhere);
    RUN(every_built_in_keeps_the_contract_of_its_table);
    RUN(chains_open_in_the_order_of_their_names);
    RUN(bad_chains_are_refused_with_the_names_that_exist);
    RUN(frames_are_aligned_writable_and_gone_when_destroyed);
    RUN(impossible_frames_are_refused);
    RUN(what_alignment_maps_too_much_is_given_back);
    RUN(refused_advice_costs_speed_only);
    RUN(memory_info_is_a_part_of_the_whole);
    RUN(a_numa_node_is_used_or_refused_by_number);
    RUN(trace_logs_every_call_with_its_result);
    RUN(fault_fails_the_chosen_calls_and_no_other);
    return 0;
}
