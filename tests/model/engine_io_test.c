/*
 * What the disk can do to a run: errors that pass, errors that stay, short reads, and files that
 * are cut, replaced or rewritten while they are used. Logits are right to the bit, or the run ends
 * with an error that names the file; never wrong logits with MP_OK. Variants: the reader; or a
 * device (the driver without one) whose experts come through a host tier that holds next to none.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/model/harness.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define SOURCE "tests/data/models/mixtral-tiny"
#define STEPS 3
#define VOCAB_MAX 128
#define READS (FAULT_BIT(pread) | FAULT_BIT(io_uring_read))

static const int32_t tokens[] = { 3, 14, 15, 92, 65, 35, 89, 79, 32, 38 };
static const int32_t lens[] = { 7 };
static float reference[STEPS + 1][VOCAB_MAX], got[STEPS + 1][VOCAB_MAX];
static char dir[4200], weights[4300];
static bool with_uring, with_cuda, exclusive;

static void copy_file(const char *from, const char *to)
{
    static char buffer[1 << 20];
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    const int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ssize_t n;

    CHECK(in >= 0 && out >= 0);
    while ((n = read(in, buffer, sizeof(buffer))) > 0)
        CHECK_EQ(write(out, buffer, (size_t)n), n);
    CHECK_EQ(n, 0);
    close(in);
    CHECK_EQ(close(out), 0);
}

static void make_model(void)
{
    char to[4400];

    snprintf(dir, sizeof(dir), "%s/model", test_tmpdir());
    snprintf(weights, sizeof(weights), "%s/model.safetensors", dir);
    if (mkdir(dir, 0755) != 0)
        CHECK(access(dir, F_OK) == 0);
    snprintf(to, sizeof(to), "%s/config.json", dir);
    copy_file(SOURCE "/config.json", to);
    unlink(weights);
    copy_file(SOURCE "/model.safetensors", weights);
}

static enum mp_status run(struct harness *h)
{
    memset(got, 0, sizeof(got));
    return harness_run(h, tokens, MP_ARRAY_LEN(tokens), lens, 1, STEPS, &got[0][0]);
}

/* logits(steps, vocab) lie densely at the front of `got`. */
static void check_same(void)
{
    CHECK(memcmp(got, reference, sizeof(got)) == 0);
}

static struct harness_options options_for(const char *model)
{
    struct harness_options options = harness_defaults(model);

    options.ctx = 16;
    options.tokens_max = 16;
    if (with_cuda)
        options.backend = "cuda";
    options.residency = exclusive ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    return options;
}

/* Two slots: every layer reads. */
static void open_tight(struct harness *h)
{
    struct harness_options options = options_for(dir);
    struct mp_space_plan plan;

    options.no_uring = !with_uring;
    options.io_mode = MP_IO_BUFFERED;
    harness_open(&options, h);
    mp_engine_plan(h->engine, &plan);
    harness_close(h);
    options.budget_bytes = plan.smallest_bytes;
    if (with_cuda)
        options.host_budget_bytes = 2 * plan.smallest_bytes;
    harness_open(&options, h);
    if (!with_cuda)
        CHECK_STR(mp_engine_reader(h->engine), with_uring ? "io_uring" : "threads");
}

static void make_reference(void)
{
    const struct harness_options options = options_for(SOURCE);
    struct harness h;

    harness_open(&options, &h);
    CHECK(h.model.vocab <= VOCAB_MAX);
    CHECK_EQ(run(&h), MP_OK);
    memcpy(reference, got, sizeof(got));
    harness_close(&h);
}

static void an_error_that_passes_does_not_show(void)
{
    struct harness h;

    make_model();
    open_tight(&h);
    /* Some failures hit the ring's own wake-up reads, which are not counted: go on until enough
     * hit the others. */
    for (uint64_t skip = 0;
         skip < 15 || (skip < 300 && mp_engine_counters(h.engine)->read_retries < 5); skip++) {
        const struct fault_plan plan = { .mode = FAULT_ONCE, .calls = READS, .skip = skip % 15 };

        fault_begin(&plan);
        CHECK_EQ(run(&h), MP_OK);
        CHECK_EQ(fault_end(), 1);
        check_same();
    }
    CHECK(mp_engine_counters(h.engine)->read_retries >= 5);
    harness_close(&h);
}

static void check_io_error(enum mp_status status, const char *code)
{
    const struct mp_error *error = mp_error_last();

    if (status != MP_ERR_IO || strcmp(error->code, code) != 0)
        fprintf(stderr, "status %d, error[%s]: %s\n", (int)status, error->code, error->text);
    CHECK_EQ(status, MP_ERR_IO);
    CHECK_EQ(mp_status_exit_code(status), 6);
    CHECK_STR(error->code, code);
    CHECK(strstr(error->text, "model.safetensors") != NULL);
}

static void an_error_that_stays_names_file_and_byte(void)
{
    struct harness h;

    make_model();
    open_tight(&h);
    for (uint64_t skip = 0; skip < 15; skip += 3) {
        const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = READS, .skip = skip };
        enum mp_status status;

        fault_begin(&plan);
        status = run(&h);
        fault_end();
        check_io_error(status, "E_READ");
        CHECK(strstr(mp_error_last()->text, "byte ") != NULL);
        CHECK(mp_pager_check(mp_engine_pager(h.engine)));
        CHECK_EQ(run(&h), MP_OK);
        check_same();
    }
    harness_close(&h);
}

static void short_reads_do_not_show(void)
{
    static const uint32_t lengths[] = { 1, 100, 511, 1000, 4095 };
    struct harness h;

    make_model();
    open_tight(&h);
    for (size_t i = 0; i < MP_ARRAY_LEN(lengths); i++) {
        const struct fault_plan plan = { .mode = lengths[i] == 1 ? FAULT_ONCE : FAULT_ALWAYS,
                                         .calls = READS,
                                         .skip = i,
                                         .short_bytes = lengths[i] };

        fault_begin(&plan);
        CHECK_EQ(run(&h), MP_OK);
        CHECK(fault_end() > 0);
        check_same();
    }
    harness_close(&h);
}

static void truncate_it(void)
{
    CHECK_EQ(truncate(weights, 20000), 0);
}

static void replace_it(void)
{
    char other[4400];

    snprintf(other, sizeof(other), "%s/other", dir);
    copy_file(SOURCE "/model.safetensors", other);
    CHECK_EQ(rename(other, weights), 0);
}

/* Other bytes of the same length, in the middle of the experts. */
static void rewrite_it(void)
{
    static char noise[30000];
    const int fd = open(weights, O_WRONLY | O_CLOEXEC);

    memset(noise, 0x3c, sizeof(noise));
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, noise, sizeof(noise), 10000), sizeof(noise));
    CHECK_EQ(close(fd), 0);
}

static void changed_files_are_noticed(void)
{
    static const struct {
        void (*change)(void);
        const char *code;
    } cases[] = {
        { truncate_it, "E_FILE_CHANGED" },
        { replace_it, "E_FILE_CHANGED" },
        { rewrite_it, "E_FILE_CHANGED" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct harness h;
        enum mp_status status;

        make_model();
        open_tight(&h);
        CHECK_EQ(run(&h), MP_OK);
        check_same();
        cases[i].change();
        status = run(&h);
        check_io_error(status, cases[i].code);
        /* And it stays so: what is wrong now is not used later. */
        CHECK(run(&h) != MP_OK);
        CHECK(mp_pager_check(mp_engine_pager(h.engine)));
        harness_close(&h);
    }
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    with_uring = strcmp(argv[1], "io_uring") == 0;
    with_cuda = strncmp(argv[1], "cuda", 4) == 0;
    exclusive = strcmp(argv[1], "cuda-exclusive") == 0;
    if (with_cuda)
        setenv("FAKECUDA_GRANULE", "4096", 1); /* else a frame has room for everything */
    mp_test_drop_log();                        /* injected failures are warned of, rightly */
    if (with_uring) {
        struct mp_reader_config config = { .clock = mp_clock_monotonic(),
                                           .uring = true,
                                           .depth = 2,
                                           .threads = 1,
                                           .chunk_bytes = 4096 };
        struct mp_reader *reader;
        bool there;

        CHECK_EQ(mp_files_create(&config.files), MP_OK);
        CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
        there = strcmp(mp_reader_engine(reader), "io_uring") == 0;
        mp_reader_destroy(reader);
        mp_files_destroy(config.files);
        if (!there)
            SKIP("io_uring is not to be had here");
    }
    make_reference();
    RUN(an_error_that_passes_does_not_show);
    RUN(an_error_that_stays_names_file_and_byte);
    RUN(short_reads_do_not_show);
    RUN(changed_files_are_noticed);
    return 0;
}
