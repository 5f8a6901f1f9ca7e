/*
 * What hooks say that needs no paging, and a kernel with no mappings left to give.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "interpose/entry/entry_int.h"
#include "interpose/pager/ggml.h"
#include "tests/support/test.h"
#include "tests/unit/interpose/made_up.h"
#include "vmm/base/log.h"

enum { PAGE = 4096, LEFT = 8 };

static _Atomic unsigned said;

static void note_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    said += strstr(line, "no more mappings") != NULL;
}

static uint64_t layers_opened(uint64_t *full_routings_p)
{
    struct mp_paged *paged = mp_entry_begin(0);
    uint64_t layers;

    CHECK(paged != NULL);
    layers = paged->layers_opened;
    *full_routings_p = atomic_load(&paged->full_routings);
    mp_entry_end(paged);
    return layers;
}

/* A warm-up reads all experts of all layers: they are read where they are, and nobody learns from
 * it what is used. */
static void a_warm_up_is_no_choice(const char *base)
{
    static const float input[64];
    int32_t ids[MADE_EXPERTS];
    uint64_t full, opened;

    for (uint32_t e = 0; e < MADE_EXPERTS; e++)
        ids[e] = (int32_t)e;
    for (uint32_t l = 0; l < MADE_LAYERS; l++) {
        const struct mp_ggml_tensor rows = { .ne = { 64, 1, 1, 1 },
                                             .nb = { 4, 256 },
                                             .data = input };
        const struct mp_ggml_tensor all = { .ne = { MADE_EXPERTS, 1, 1, 1 },
                                            .nb = { 4, 4 * MADE_EXPERTS },
                                            .data = ids };
        const struct mp_ggml_tensor weights = { .ne = { 64, 49, MADE_EXPERTS, 1 },
                                                .data = base + made_offset(l, 0, 0) };
        const struct mp_ggml_tensor dst = { .src = { &weights, &rows, &all } };

        for (uint32_t e = 0; e < MADE_EXPERTS; e++)
            mp_interposer_table.expert(NULL, &dst, e, 1);
    }
    opened = layers_opened(&full);
    CHECK_EQ(opened, 0);
    CHECK_EQ(full, MADE_LAYERS);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    made_run_layer(base, 0, (int32_t[]){ 1, 2 }, 1);
    CHECK_EQ(layers_opened(&full), 1);
}

/* A process may have another ggml, whose tensors lie otherwise: they are not looked at. */
static void another_ggml_has_its_own_layout(const char *base)
{
    struct mp_ggml_tensor strange;
    uint64_t full, opened;

    made_run_layer(base, 0, (int32_t[]){ 1, 2 }, 1);
    opened = layers_opened(&full);
    memset(&strange, 0xee, sizeof(strange));
    for (int64_t e = 0; e < 3; e++)
        mp_interposer_table.expert(&made_other_ggml, &strange, e, 1);
    CHECK_EQ(layers_opened(&full), opened);
    made_run_layer(base, 1, (int32_t[]){ 1, 2 }, 1); /* the known one goes on */
    CHECK_EQ(layers_opened(&full), opened + 1);
}

/* Takes mappings until there are none, and gives a few back. Pages of alternating protection are
 * one each. */
static char *take_mappings(size_t *bytes_p, bool *all_p)
{
    const size_t bytes = (size_t)256 << 20;
    char *region = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t at = PAGE;

    CHECK(region != MAP_FAILED);
    while (at < bytes && mprotect(region + at, PAGE, PROT_READ) == 0)
        at += 2 * (size_t)PAGE;
    *bytes_p = bytes;
    *all_p = at < bytes;
    if (!*all_p) /* vm.max_map_count is larger than usual */
        return region;
    CHECK_EQ(errno, ENOMEM);
    for (int i = 1; i <= LEFT / 2; i++)
        CHECK_EQ(mprotect(region + at - 2 * (size_t)i * PAGE, PAGE, PROT_NONE), 0);
    return region;
}

static uint32_t units_mapped(void)
{
    struct mp_paged *paged = mp_entry_begin(0);
    struct mp_mappings_counts counts;

    CHECK(paged != NULL);
    mp_mappings_get_counts(paged->mappings, &counts);
    mp_entry_end(paged);
    return counts.mapped;
}

/* The file is mapped back into what was kept for that, and the program has what is left; once there
 * are some again, experts are mapped again. */
static void no_mappings_are_left(const char *base)
{
    size_t bytes;
    bool all;
    char *region = take_mappings(&bytes, &all);

    for (uint32_t t = 0; t < 40; t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            const int32_t ids[MADE_TOP_K] = { (int32_t)((3 * t + l) % MADE_EXPERTS),
                                              (int32_t)((3 * t + l + 4) % MADE_EXPERTS) };

            made_run_layer(base, l, ids, 1);
        }
        CHECK(made_is_equal(base, 0, made_file_bytes));
    }
    CHECK_EQ(units_mapped() > 0, !all);
    CHECK_EQ(munmap(region, bytes), 0);
    for (uint32_t t = 0; t < 300; t++) /* it is not asked each time how many are left */
        made_run_layer(base, t % MADE_LAYERS, (int32_t[]){ 2, 5 }, 1);
    CHECK(units_mapped() > 0);
    CHECK_EQ(said, all);
}

/* A thread computes while the program ends, and what was registered to run then waits for it. */
static struct {
    pthread_t thread;
    char *base;
    _Atomic bool stop;
    _Atomic uint32_t tokens;
} computing;

static void *compute(void *arg)
{
    for (uint32_t t = 0; !atomic_load(&computing.stop); t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            const int32_t ids[MADE_TOP_K] = { (int32_t)(t % MADE_EXPERTS),
                                              (int32_t)((t + 3) % MADE_EXPERTS) };

            made_run_layer(arg, l, ids, 1);
        }
        atomic_fetch_add(&computing.tokens, 1);
    }
    return NULL;
}

static void begin_computing(char *base)
{
    computing.base = base;
    CHECK_EQ(pthread_create(&computing.thread, NULL, compute, base), 0);
}

/* With the lowest priority: after the interposer's own. */
__attribute__((destructor(101))) static void wait_for_thread(void)
{
    const uint32_t tokens = atomic_load(&computing.tokens);
    struct timespec end;

    if (computing.base == NULL)
        return;
    fprintf(stderr, "  a_thread_computes_while_the_program_ends\n");
    for (int i = 0; i < 500 && atomic_load(&computing.tokens) < tokens + 2; i++)
        usleep(10000);
    atomic_store(&computing.stop, true);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 5;
    if (pthread_timedjoin_np(computing.thread, NULL, &end) != 0) {
        fprintf(stderr, "    it stands still\n");
        _exit(1);
    }
    made_unmap(computing.base, made_file_bytes);
}

int main(void)
{
    const char *path = made_path();
    const int fd = open(path, O_RDONLY);
    char *base;

    CHECK(fd >= 0);
    made_start("300K", "expert");
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    CHECK(made_is_paged(base));
    a_warm_up_is_no_choice(base);
    mp_log_set_sink(note_line, NULL);
    another_ggml_has_its_own_layout(base);
    no_mappings_are_left(base);
    begin_computing(base);
    close(fd);
    return 0;
}
