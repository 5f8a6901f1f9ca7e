/*
 * Several models in one process: each is paged by itself, and whoever reads any of them reads its
 * file. How a budget is shared out, and what is asked of which model.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interpose/pager/ggml.h"
#include "interpose/pager/paged.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/family.h"
#include "tests/unit/interpose/made_up.h"

#define HIDDEN 64u
#define EXPERTS 8u
#define TOP_K 2u
#define MODELS 5u
#define RELOADS 300u

/* Rows of an expert: so that the models are of different sizes. */
static const uint32_t rows_of[MODELS] = { 1024, 512, 512, 512, 512 };

struct model {
    char path[sizeof(test_tmpdir_path) + 32];
    unsigned char *bytes;
    uint64_t size, experts_at[2], router_at[2]; /* of both layers */
    uint64_t expert_bytes, all_bytes;
    char *base;
};

static struct model models[MODELS];
static const char *hooks;

static void make_model(uint32_t m)
{
    struct model *model = &models[m];
    FILE *in;

    family_begin("made");
    family_number("expert_used_count", TOP_K);
    family_tensor(FAMILY_F32, HIDDEN, 1000 + m, 0, "token_embd.weight");
    for (uint32_t l = 0; l < 2; l++) {
        family_tensor(FAMILY_BF16, HIDDEN, rows_of[m], EXPERTS, "blk.%u.ffn_up_exps.weight", l);
        family_tensor(FAMILY_F32, HIDDEN, EXPERTS, 0, "blk.%u.ffn_gate_inp.weight", l);
    }
    family_fill();
    ((unsigned char *)family_data("blk.0.ffn_up_exps.weight"))[0] = (unsigned char)m;
    model->experts_at[0] = family_offset("blk.0.ffn_up_exps.weight");
    model->experts_at[1] = family_offset("blk.1.ffn_up_exps.weight");
    model->router_at[0] = family_offset("blk.0.ffn_gate_inp.weight");
    model->router_at[1] = family_offset("blk.1.ffn_gate_inp.weight");
    model->expert_bytes = 2 * HIDDEN * rows_of[m];
    model->all_bytes = 2 * EXPERTS * model->expert_bytes;
    snprintf(model->path, sizeof(model->path), "%s/model-%u.gguf", test_tmpdir(), m);
    model->size = family_save(model->path);
    model->bytes = malloc(model->size);
    CHECK(model->bytes != NULL);
    in = fopen(model->path, "rb");
    CHECK(in != NULL);
    CHECK_EQ(fread(model->bytes, 1, model->size, in), model->size);
    fclose(in);
}

static bool map_model(uint32_t m)
{
    const int fd = open(models[m].path, O_RDONLY);

    CHECK(fd >= 0);
    models[m].base = made_map(fd, models[m].size, MAP_SHARED, 0);
    close(fd);
    return made_is_paged(models[m].base);
}

static void unmap_model(uint32_t m)
{
    made_unmap(models[m].base, models[m].size);
    models[m].base = NULL;
}

static void expect_equal(uint32_t m, uint64_t begin, uint64_t bytes)
{
    CHECK(memcmp(models[m].base + begin, models[m].bytes + begin, bytes) == 0);
}

/* One token of one layer, as ggml's threads say it, or the scheduler's callback. */
static void run_layer(uint32_t m, uint32_t layer, int32_t first, int32_t second)
{
    const struct model *model = &models[m];
    const int32_t ids[TOP_K] = { first, second };
    const float input[HIDDEN] = { 0 };
    const struct mp_ggml_tensor rows = { .ne = { HIDDEN, 1, 1, 1 },
                                         .nb = { 4, 4 * HIDDEN, 4 * HIDDEN, 4 * HIDDEN },
                                         .data = input };
    const struct mp_ggml_tensor router = { .data = model->base + model->router_at[layer] };
    const struct mp_ggml_tensor product = { .src = { &router, &rows } };
    const struct mp_ggml_tensor scores = { .src = { &product } };
    struct mp_ggml_tensor chosen = {
        .ne = { TOP_K, 1, 1, 1 }, .nb = { 4, 8 }, .data = ids, .src = { &scores }
    };
    const struct mp_ggml_tensor weights = { .ne = { HIDDEN, rows_of[m], EXPERTS, 1 },
                                            .data = model->base + model->experts_at[layer] };
    const struct mp_ggml_tensor dst = { .src = { &weights, &rows, &chosen } };

    if (strcmp(hooks, "router") == 0) {
        snprintf(chosen.name, sizeof(chosen.name), "ffn_moe_topk-%u", layer);
        if (mp_interposer_table.is_chosen(&chosen))
            mp_interposer_table.chosen(&chosen);
    }
    for (int32_t e = 0; e < (int32_t)EXPERTS; e++) {
        if (e != first && e != second)
            continue;
        mp_interposer_table.expert(NULL, &dst, e, 1);
        expect_equal(m, model->experts_at[layer] + (uint64_t)e * model->expert_bytes,
                     model->expert_bytes);
    }
}

static void run_tokens(uint32_t m, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++) {
        const int32_t first = (int32_t)((t * 3 + m) % EXPERTS);

        run_layer(m, t % 2, first, (int32_t)((uint32_t)first + 1 + t % 5) % (int32_t)EXPERTS);
    }
}

/* A slot's pages are those of a memory file. */
static uint32_t count_mapped(uint32_t m)
{
    const uintptr_t base = (uintptr_t)models[m].base, end = base + models[m].size;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL) {
        unsigned long from = strtoul(line, NULL, 16);

        count += from >= base && from < end && strstr(line, "memfd:") != NULL;
    }
    fclose(maps);
    return count;
}

static void two_models_are_paged_at_once(void)
{
    CHECK(map_model(0));
    CHECK(map_model(1));
    CHECK(made_is_paged(models[0].base));
    for (uint32_t n = 0; n < 20; n++) {
        run_tokens(0, 3);
        run_tokens(1, 5);
    }
    CHECK(count_mapped(0) > 0);
    CHECK(count_mapped(1) > 0);
    expect_equal(0, 0, models[0].size);
    expect_equal(1, 0, models[1].size);
    /* One of them goes; the other is paged on. */
    unmap_model(0);
    CHECK(made_is_paged(models[1].base));
    CHECK(made_span.begin >= (uintptr_t)models[1].base);
    run_tokens(1, 20);
    CHECK(count_mapped(1) > 0);
    CHECK(map_model(0));
    run_tokens(0, 20);
    CHECK(count_mapped(0) > 0);
    unmap_model(1);
    unmap_model(0);
    CHECK_EQ(made_span.end, 0);
}

static void *run_second(void *arg)
{
    (void)arg;
    for (uint32_t n = 0; n < 100; n++)
        run_tokens(1, 10);
    return NULL;
}

/* A thread for each, while models come and go. */
static void models_do_not_wait_for_each_other(void)
{
    pthread_t thread;

    CHECK(map_model(1));
    CHECK_EQ(pthread_create(&thread, NULL, run_second, NULL), 0);
    for (uint32_t n = 0; n < 20; n++) {
        CHECK(map_model(0));
        run_tokens(0, 20);
        unmap_model(0);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    unmap_model(1);
}

/* The old mapping of a file goes while the new one is made, as when a server loads its model anew.
 */
static struct {
    _Atomic uint32_t ready;
    char *old;
} reload;

static void wait_for_round(uint32_t round)
{
    atomic_fetch_add(&reload.ready, 1);
    while (atomic_load(&reload.ready) < 2 * round)
        sched_yield();
}

static void *unmap_old(void *arg)
{
    (void)arg;
    for (uint32_t n = 1; n <= RELOADS; n++) {
        wait_for_round(2 * n - 1);
        for (volatile uint32_t i = 0; i < n % 64 * 200; i++)
            ;
        made_unmap(reload.old, models[1].size);
        wait_for_round(2 * n);
    }
    return NULL;
}

static void a_model_that_is_mapped_anew_is_paged(void)
{
    pthread_t thread;

    CHECK(map_model(1));
    CHECK_EQ(pthread_create(&thread, NULL, unmap_old, NULL), 0);
    for (uint32_t n = 1; n <= RELOADS; n++) {
        reload.old = models[1].base;
        wait_for_round(2 * n - 1);
        (void)map_model(1);
        wait_for_round(2 * n);
        CHECK(made_is_paged(models[1].base));
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    run_tokens(1, 10);
    CHECK(count_mapped(1) > 0);
    unmap_model(1);
}

static void a_child_reads_both_files(void)
{
    int status;
    pid_t child;

    CHECK(map_model(0));
    CHECK(map_model(1));
    run_tokens(0, 10);
    run_tokens(1, 10);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(!made_is_paged(models[0].base) && !made_is_paged(models[1].base));
        expect_equal(0, 0, models[0].size);
        expect_equal(1, 0, models[1].size);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    run_tokens(0, 10);
    run_tokens(1, 10);
    unmap_model(0);
    unmap_model(1);
}

/* More than there are places for are the program's own. */
static void the_fifth_is_left_alone(void)
{
    for (uint32_t m = 0; m < MODELS; m++)
        CHECK_EQ(map_model(m), m < 4);
    for (uint32_t m = 0; m < MODELS; m++)
        run_tokens(m, 10);
    expect_equal(4, 0, models[4].size);
    unmap_model(4);
    unmap_model(2);
    CHECK(map_model(4)); /* now there is one */
    run_tokens(4, 10);
    unmap_model(4);
    unmap_model(0);
    unmap_model(1);
    unmap_model(3);
}

/* Each has its report, trace and timeline. */
static void files_of_several_have_several_names(void)
{
    struct mp_paged paged = { 0 };
    char name[PATH_MAX], expected[64];

    mp_paged_expand(&paged, "r.json", name);
    CHECK_STR(name, "r.json");
    paged.index = 1;
    mp_paged_expand(&paged, "r.json", name);
    CHECK_STR(name, "r.2.json");
    mp_paged_expand(&paged, "trace", name);
    CHECK_STR(name, "trace.2");
    mp_paged_expand(&paged, "a-%p-b.json", name);
    snprintf(expected, sizeof(expected), "a-%ld-b.2.json", (long)getpid());
    CHECK_STR(name, expected);
}

/* What the others have not filled yet is theirs all the same. */
static void budgets_of_others_are_counted(void)
{
    struct mp_unit units[8] = { { .piece_count = 2 }, { .piece_count = 3 } };
    struct mp_paged paged = { .budget_bytes = 1000,
                              .counters = { .resident_peak_bytes = 300 },
                              .experts = { .layers = 2, .experts = 4, .units = units },
                              .plan = { .slot_bytes_max = 250 } };
    struct mp_paged_others beside = { 0 };

    mp_paged_add_other(NULL, &beside);
    mp_paged_add_other(&paged, &beside);
    paged.counters.resident_peak_bytes = 2000;
    mp_paged_add_other(&paged, &beside);
    CHECK_EQ(beside.budget_bytes, 2000);
    CHECK_EQ(beside.empty_bytes, 700);
    CHECK_EQ(beside.maps, 5); /* two units, which are no more than there are pieces */
    for (uint32_t u = 0; u < 8; u++)
        units[u].piece_count = 3;
    paged.counters.resident_peak_bytes = 500;
    mp_paged_add_other(&paged, &beside);
    CHECK_EQ(beside.maps, 5 + 2 * 3 * 2);
}

/* A size is for all of them, first come; the last case, with a budget of its own. */
static void a_size_is_for_all_together(void)
{
    const uint64_t half = models[0].all_bytes / 2;
    char size[32];
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child > 0) {
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
    }
    snprintf(size, sizeof(size), "%llu", (unsigned long long)half);
    made_start(size, hooks);
    CHECK(map_model(0));
    CHECK(!map_model(1)); /* nothing is left */
    run_tokens(0, 10);
    run_tokens(1, 10);
    unmap_model(0);
    unmap_model(1);
    /* One that fits is none of them: it is not paged. */
    snprintf(size, sizeof(size), "%llu",
             (unsigned long long)(models[2].all_bytes + models[3].all_bytes / 2));
    made_start(size, hooks);
    CHECK(!map_model(2));
    unmap_model(2);
    CHECK(map_model(0));
    unmap_model(0);
    _exit(0);
}

int main(int argc, char **argv)
{
    hooks = argc > 1 ? argv[1] : "expert";
    for (uint32_t m = 0; m < MODELS; m++)
        make_model(m);
    RUN(files_of_several_have_several_names);
    RUN(budgets_of_others_are_counted);
    RUN(a_size_is_for_all_together);
    made_start("50%", hooks);
    RUN(two_models_are_paged_at_once);
    RUN(models_do_not_wait_for_each_other);
    RUN(a_model_that_is_mapped_anew_is_paged);
    RUN(a_child_reads_both_files);
    RUN(the_fifth_is_left_alone);
    return 0;
}
