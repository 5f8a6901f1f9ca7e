/*
 * Routing traces: what is written is read back, and every damaged line is refused with its number.
 */
#include "policy/record/trace.h"

#include <float.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static const char *path_of(const char *name)
{
    static char path[4200];

    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    FILE *file = fopen(path_of(name), "we");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(text, 1, bytes, file), bytes);
    CHECK_EQ(fclose(file), 0);
}

#define ROWS 300

static void expected_row(uint32_t i, uint32_t *numbers, uint32_t *experts, float *weights)
{
    static const float values[] = { 0.1f,    1.0f / 3, 1,           0,       -0.25f,
                                    FLT_MAX, FLT_MIN,  FLT_EPSILON, 1.5e-20f };

    numbers[0] = i / 20;
    numbers[1] = i % 5;
    numbers[2] = i == 7 ? UINT32_MAX - 1 : i % 4;
    numbers[3] = i * 1000003 % 4000000;
    for (uint32_t r = 0; r < 3; r++) {
        experts[r] = (i + r * 5) % 16;
        weights[r] = values[(i + r) % 9];
    }
}

static enum mp_status write_trace(const char *name)
{
    const struct mp_trace_shape shape = {
        .model = "tiny moe\n\xc3\xa9", .layers = 5, .experts = 16, .top_k = 3, .expert_bytes = 4096
    };
    struct mp_trace_writer *writer;
    enum mp_status status = mp_trace_create(path_of(name), &shape, &writer);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t numbers[4], experts[3];
        float weights[3];
        const struct mp_trace_row *row;

        expected_row(i, numbers, experts, weights);
        row = &(struct mp_trace_row){ numbers[0], numbers[1], numbers[2], numbers[3],
                                      experts,    weights,    NULL };
        mp_trace_write(writer, row);
    }
    return mp_trace_close(writer);
}

static enum mp_status read_trace(const char *name)
{
    struct mp_trace_reader *reader;
    struct mp_trace_row row;
    enum mp_status status = mp_trace_open(path_of(name), &reader);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t numbers[4], experts[3];
        float weights[3];

        expected_row(i, numbers, experts, weights);
        status = mp_trace_read(reader, &row);
        if (status != MP_OK) {
            mp_trace_reader_destroy(reader);
            return status;
        }
        CHECK(row.experts != NULL);
        CHECK_EQ(row.step, numbers[0]);
        CHECK_EQ(row.layer, numbers[1]);
        CHECK_EQ(row.sequence, numbers[2]);
        CHECK_EQ(row.position, numbers[3]);
        CHECK(memcmp(row.experts, experts, sizeof(experts)) == 0);
        for (uint32_t r = 0; r < 3; r++)
            CHECK(row.weights[r] == weights[r]); /* every bit of a float */
    }
    for (unsigned again = 0; again < 2; again++) {
        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
        CHECK(row.experts == NULL);
    }
    mp_trace_reader_destroy(reader);
    return MP_OK;
}

static void what_is_written_is_read_back(void)
{
    struct mp_trace_reader *reader;

    CHECK_EQ(write_trace("round"), MP_OK);
    CHECK_EQ(read_trace("round"), MP_OK);
    CHECK_EQ(mp_trace_open(path_of("round"), &reader), MP_OK);
    CHECK_STR(mp_trace_get_shape(reader)->model, "tiny_moe___");
    CHECK_EQ(mp_trace_get_shape(reader)->layers, 5);
    CHECK_EQ(mp_trace_get_shape(reader)->experts, 16);
    CHECK_EQ(mp_trace_get_shape(reader)->top_k, 3);
    CHECK_EQ(mp_trace_get_shape(reader)->expert_bytes, 4096);
    mp_trace_reader_destroy(reader);
    mp_trace_reader_destroy(NULL);
}

/* The longest values that there are fit into a line. */
static void scores_of_all_experts_are_read_back(void)
{
    static const struct mp_trace_shape shapes[] = {
        { .layers = 1, .experts = 3, .top_k = 2, .expert_bytes = 1, .scores = true },
        { .layers = 1, .experts = 4096, .top_k = 64, .expert_bytes = 1, .scores = true },
    };
    static uint32_t experts[64];
    static float scores[4096];
    const struct mp_trace_row row = { .experts = experts, .weights = scores, .scores = scores };

    for (uint32_t i = 0; i < 4096; i++)
        scores[i] = 1.17549435e-38f * (1 + (float)i / 4096);
    for (uint32_t i = 0; i < 64; i++)
        experts[i] = i;
    for (size_t s = 0; s < 2; s++) {
        struct mp_trace_writer *writer;
        struct mp_trace_reader *reader;
        struct mp_trace_row got;

        CHECK_EQ(mp_trace_create(path_of("scores"), &shapes[s], &writer), MP_OK);
        mp_trace_write(writer, &row);
        mp_trace_write(writer, &row);
        CHECK_EQ(mp_trace_close(writer), MP_OK);
        CHECK_EQ(mp_trace_open(path_of("scores"), &reader), MP_OK);
        CHECK(mp_trace_get_shape(reader)->scores);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(mp_trace_read(reader, &got), MP_OK);
            CHECK(got.scores != NULL);
            CHECK(memcmp(got.scores, scores, shapes[s].experts * sizeof(float)) == 0);
        }
        CHECK_EQ(mp_trace_read(reader, &got), MP_OK);
        CHECK(got.experts == NULL);
        mp_trace_reader_destroy(reader);
    }
}

static unsigned long long random_state = 88172645463325252ull;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

#define SCORED 4096

/* Scores near powers of ten and of two, halves of the last digit, and random ones: of (0, 1), and
 * of all bits. */
static void fill_values(uint32_t row, float *values)
{
    for (uint32_t e = 0; e < SCORED; e++) {
        const float near = 1 + (float)((int)(e / 2) - SCORED / 4) * FLT_EPSILON / 2;
        const uint32_t bits = random_bits();
        float value = (float)(bits >> 8) / (float)(1 << 24);

        if (row < 8)
            value = near * (e % 2 ? powf(10, -(float)row) : powf(2, -(float)(row + 8 * (e % 3))));
        else if (row < 16)
            value = (float)(bits % 4096) / (float)(1 << (row + 4));
        else if (row < 24)
            memcpy(&value, &bits, sizeof(value));
        values[e] = isfinite(value) ? value : 0.5f;
    }
}

static void same_words(char *got, char *want)
{
    char *got_at, *want_at;

    got = strtok_r(got, " ", &got_at);
    want = strtok_r(want, " ", &want_at);
    while (got != NULL && want != NULL) {
        CHECK_STR(got, want);
        got = strtok_r(NULL, " ", &got_at);
        want = strtok_r(NULL, " ", &want_at);
    }
    CHECK(got == NULL && want == NULL);
}

static void numbers_are_those_of_printf(void)
{
    const struct mp_trace_shape shape = {
        .model = "m", .layers = 1, .experts = SCORED, .top_k = 1, .expert_bytes = 1, .scores = true
    };
    static float values[64][SCORED];
    static char line[1 << 17], want[1 << 17];
    struct mp_trace_writer *writer;
    const uint32_t expert = SCORED - 1;
    FILE *file;

    CHECK_EQ(mp_trace_create(path_of("numbers"), &shape, &writer), MP_OK);
    for (uint32_t i = 0; i < 64; i++) {
        const struct mp_trace_row row = { .step = i,
                                          .layer = UINT32_MAX - 1,
                                          .position = 10,
                                          .experts = &expert,
                                          .weights = values[i],
                                          .scores = values[i] };

        fill_values(i, values[i]);
        mp_trace_write(writer, &row);
    }
    CHECK_EQ(mp_trace_close(writer), MP_OK);
    file = fopen(path_of("numbers"), "re");
    CHECK(file != NULL);
    for (int i = 0; i < 3; i++)
        CHECK(fgets(line, sizeof(line), file) != NULL);
    for (uint32_t i = 0; i < 64; i++) {
        size_t used = (size_t)sprintf(want, "%u %u 0 10 %u:%.9g |", i, UINT32_MAX - 1, expert,
                                      (double)values[i][0]);

        for (uint32_t e = 0; e < SCORED; e++)
            used += (size_t)sprintf(want + used, " %.9g", (double)values[i][e]);
        strcpy(want + used, "\n");
        CHECK(fgets(line, sizeof(line), file) != NULL);
        same_words(line, want);
    }
    CHECK_EQ(fclose(file), 0);
}

static void what_is_abandoned_never_was(void)
{
    const struct mp_trace_shape shape = { .layers = 1, .experts = 1, .top_k = 1 };
    struct mp_trace_writer *writer;

    CHECK_EQ(mp_trace_create(path_of("abandoned"), &shape, &writer), MP_OK);
    mp_trace_abandon(writer);
    mp_trace_abandon(NULL);
    CHECK(access(path_of("abandoned"), F_OK) != 0);
    CHECK_EQ(mp_trace_create(path_of("no/such/folder"), &shape, &writer), MP_ERR_IO);
    CHECK_EQ(mp_trace_create(path_of("empty"), &shape, &writer),
             MP_OK); /* without a model's name */
    CHECK_EQ(mp_trace_close(writer), MP_OK);
}

static void shapes_beyond_the_format_are_refused(void)
{
    static const struct mp_trace_shape bad[] = {
        { .layers = 0, .experts = 8, .top_k = 2 },    { .layers = 4097, .experts = 8, .top_k = 2 },
        { .layers = 1, .experts = 4097, .top_k = 2 }, { .layers = 1, .experts = 0, .top_k = 0 },
        { .layers = 1, .experts = 100, .top_k = 65 }, { .layers = 1, .experts = 8, .top_k = 0 },
        { .layers = 1, .experts = 8, .top_k = 9 },
    };
    struct mp_trace_writer *writer;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_EQ(mp_trace_create(path_of("shape"), &bad[i], &writer), MP_ERR_UNSUPPORTED);
        CHECK_STR(mp_error_last()->code, "E_TRACE_SHAPE");
    }
    CHECK(access(path_of("shape"), F_OK) != 0);
}

#define M "# moepager trace v1\n"
#define S "# model=m layers=2 experts=8 top_k=2 expert_bytes=100\n"

#define W "# model=m layers=1 experts=3 top_k=1 expert_bytes=1 scores=all\n"

struct text {
    const char *text;
    unsigned line; /* of the problem; 0: none */
    unsigned rows; /* before it */
};

static const struct text texts[] = {
    { M S, 0, 0 },
    { M S "0 0 0 0 1:0.5 2:0.25\n", 0, 1 },
    { M S "# a note\n0 1 0 0 7:1e-05 0:-0.25\n#\n1 0 9 4294967294 0:0 1:0\n", 0, 2 },
    { M W "0 0 0 0 1:1 | 0.5 1 2e-9\n", 0, 1 },
    { M W "0 0 0 0 1:1\n", 3, 0 },
    { M W "0 0 0 0 1:1 |\n", 3, 0 },
    { M W "0 0 0 0 1:1 | 0.5 1\n", 3, 0 },
    { M W "0 0 0 0 1:1 | 0.5 1 2 3\n", 3, 0 },
    { M W "0 0 0 0 1:1 | 0.5 1 nan\n", 3, 0 },
    { M W "0 0 0 0 1:1 0.5 1 2\n", 3, 0 },
    { M S "0 0 0 0 1:0.5 2:0.25 | 1 1 1 1 1 1 1 1\n", 3, 0 },
    { M "# model=m layers=1 experts=3 top_k=1 expert_bytes=1 scores=none\n", 2, 0 },
    { M "# model=m layers=1 experts=3 top_k=1 expert_bytes=1 scores=all \n", 2, 0 },
    { "", 1, 0 },
    { "# moepager trace v2\n" S, 1, 0 },
    { "# moepager trace v1 \n" S, 1, 0 },
    { "# moepager trace v1\r\n" S, 1, 0 },
    { "# moepager trace v1", 1, 0 },
    { M, 2, 0 },
    { M "0 0 0 0 1:1 2:1\n", 2, 0 },
    { M "# model= layers=2 experts=8 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=a b layers=2 experts=8 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=\xc3\xa9 layers=2 experts=8 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=0 experts=8 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=4097 experts=8 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=2 experts=4097 top_k=2 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=0 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=9 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=2 experts=99 top_k=65 expert_bytes=100\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=2 expert_bytes=\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=2 expert_bytes=-1\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=2 expert_bytes=99999999999999999999\n", 2, 0 },
    { M "# model=m layers=2 experts=8 top_k=2 expert_bytes=100 \n", 2, 0 },
    { M "# model=m experts=8 layers=2 top_k=2 expert_bytes=100\n", 2, 0 },
    { M S "\n", 3, 0 },
    { M S "0 0 0 0\n", 3, 0 },
    { M S "0 0 0 0 1:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1 3:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1 \n", 3, 0 },
    { M S " 0 0 0 0 1:1 2:1\n", 3, 0 },
    { M S "0  0 0 0 1:1 2:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1\r\n", 3, 0 },
    { M S "0 0 0 0 1:1 1:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 8:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 -2:1\n", 3, 0 },
    { M S "0 2 0 0 1:1 2:1\n", 3, 0 },
    { M S "-1 0 0 0 1:1 2:1\n", 3, 0 },
    { M S "+1 0 0 0 1:1 2:1\n", 3, 0 },
    { M S "4294967296 0 0 0 1:1 2:1\n", 3, 0 },
    { M S "0 0 0 99999999999999999999999 1:1 2:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:\n", 3, 0 },
    { M S "0 0 0 0 1: 1 2:1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:nan\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:inf\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:-inf\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1e999\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:0x1p3\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1.5.5\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1,5\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:--1\n", 3, 0 },
    { M S "0 0 0 0 1:1 2:1\n# a note\n0 0 0 1 1:1 2:1\n0 0 0 2 1:x 2:1\n", 6, 2 },
    { M S "0 0 0 0 1:1 2:1\n0 0 0 0 1:1 2:1", 4, 1 }, /* cut off */
};

/* Read all; the status of the first failure. */
static enum mp_status read_rows(const char *name, unsigned *rows_p)
{
    struct mp_trace_reader *reader;
    enum mp_status status = mp_trace_open(path_of(name), &reader);
    struct mp_trace_row row;

    *rows_p = 0;
    if (status != MP_OK)
        return status;
    while ((status = mp_trace_read(reader, &row)) == MP_OK && row.experts != NULL)
        ++*rows_p;
    mp_trace_reader_destroy(reader);
    return status;
}

static void refused_at(const char *name, unsigned line, unsigned rows)
{
    char place[64];
    unsigned got;

    snprintf(place, sizeof(place), "/%s' at line %u", name, line);
    CHECK_EQ(read_rows(name, &got), MP_ERR_MODEL);
    CHECK_EQ(got, rows);
    CHECK_STR(mp_error_last()->code, "E_TRACE_LINE");
    if (strstr(mp_error_last()->text, place) == NULL) {
        fprintf(stderr, "\"%s\" does not say %s\n", mp_error_last()->text, place);
        exit(1);
    }
}

static void every_damaged_line_is_refused_with_its_number(void)
{
    static char long_line[80 * 1024];
    unsigned rows;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_file("text", texts[i].text, strlen(texts[i].text));
        if (texts[i].line > 0) {
            refused_at("text", texts[i].line, texts[i].rows);
            continue;
        }
        CHECK_EQ(read_rows("text", &rows), MP_OK);
        CHECK_EQ(rows, texts[i].rows);
    }
    write_file("nul", M S "0 0 0\0 0 1:1 2:1\n", sizeof(M S "0 0 0\0 0 1:1 2:1\n") - 1);
    refused_at("nul", 3, 0);
    write_file("nul", M S "\0\n", sizeof(M S "\0\n") - 1);
    refused_at("nul", 3, 0);
    memset(long_line, '#', sizeof(long_line));
    memcpy(long_line, M S, sizeof(M S) - 1);
    long_line[sizeof(long_line) - 1] = '\n';
    write_file("long", long_line, sizeof(long_line));
    refused_at("long", 3, 0);
}

/* A trace cut anywhere is refused, or is a shorter trace of whole rows. */
static void a_trace_cut_anywhere_is_never_read_as_another(void)
{
    static const char whole[] = M S "0 0 0 0 1:0.5 2:0.25\n0 1 0 0 3:0.5 4:0.125\n";

    for (size_t bytes = 0; bytes < sizeof(whole); bytes++) {
        const bool at_line = bytes > 0 && whole[bytes - 1] == '\n' && bytes > sizeof(M);
        unsigned rows;

        write_file("cut", whole, bytes);
        CHECK_EQ(read_rows("cut", &rows), at_line ? MP_OK : MP_ERR_MODEL);
    }
}

static void only_regular_files_are_opened(void)
{
    struct mp_trace_reader *reader;
    char path[4200];

    CHECK_EQ(mp_trace_open(path_of("missing"), &reader), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "/missing'") != NULL);
    CHECK_EQ(mp_trace_open(test_tmpdir(), &reader), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "not a regular file") != NULL);
    CHECK_EQ(mkfifo(path_of("fifo"), 0600), 0);
    CHECK_EQ(mp_trace_open(path_of("fifo"), &reader), MP_ERR_IO); /* would block */
    CHECK_STR(mp_error_last()->code, "E_TRACE_READ");
    CHECK_EQ(mp_trace_open("/dev/null", &reader), MP_ERR_IO);
    snprintf(path, sizeof(path), "%s", path_of("round"));
    CHECK_EQ(symlink(path, path_of("link")), 0);
    CHECK_EQ(read_trace("link"), MP_OK);
}

static void once(const struct fault_plan *plan, void *ctx)
{
    uint64_t hits;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = write_trace("fault");
    if (status == MP_OK)
        status = read_trace("fault");
    hits = fault_end();
    /* A directory may have no nameless files: the trace has a temporary name then, and is whole. */
    CHECK(status == MP_OK || hits > 0);
    CHECK(status == MP_OK || mp_error_last()->text[0] != '\0');
    CHECK_EQ(write_trace("fault"), MP_OK);
    CHECK_EQ(read_trace("fault"), MP_OK);
}

static void every_call_site_fails_cleanly(void)
{
    const uint32_t runs = fault_sweep(FAULT_ANY, once, NULL);

    fprintf(stderr, "    %u call sites, %u runs\n", fault_sites_failed(FAULT_ANY), runs);
    CHECK(fault_sites_failed(FAULT_BIT(calloc)) >= 2);
    CHECK(fault_sites_failed(FAULT_BIT(open) | FAULT_BIT(fstat)) >= 2);
}

static void a_full_disk_is_reported_at_close(void)
{
    const struct mp_trace_shape shape = { .layers = 1, .experts = 1, .top_k = 1 };
    struct mp_trace_writer *writer;

    if (access("/dev/full", W_OK) != 0)
        return;
    CHECK_EQ(mp_trace_create("/dev/full", &shape, &writer), MP_OK);
    CHECK_EQ(mp_trace_close(writer), MP_ERR_IO);
}

int main(void)
{
    RUN(what_is_written_is_read_back);
    RUN(scores_of_all_experts_are_read_back);
    RUN(numbers_are_those_of_printf);
    RUN(what_is_abandoned_never_was);
    RUN(shapes_beyond_the_format_are_refused);
    RUN(every_damaged_line_is_refused_with_its_number);
    RUN(a_trace_cut_anywhere_is_never_read_as_another);
    RUN(only_regular_files_are_opened);
    RUN(every_call_site_fails_cleanly);
    RUN(a_full_disk_is_reported_at_close);
    return 0;
}
