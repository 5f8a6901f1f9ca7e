/*
 * The format is defined in docs/trace-format.md. The reader refuses whatever the writer would not
 * have written, so that a damaged trace is never replayed as another one.
 */
#include "policy/record/trace.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/regular.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/output/out.h"

#define MAGIC "# moepager trace v1"
#define SCORES " scores=all"
#define LAYERS_MAX 4096u
#define EXPERTS_MAX 4096u
#define TOP_K_MAX 64u

struct mp_trace_writer {
    struct mp_out out;
    struct mp_trace_shape shape;
};

static bool shape_is_sane(const struct mp_trace_shape *shape)
{
    return shape->layers >= 1 && shape->layers <= LAYERS_MAX && shape->experts >= 1 &&
           shape->experts <= EXPERTS_MAX && shape->top_k >= 1 && shape->top_k <= TOP_K_MAX &&
           shape->top_k <= shape->experts;
}

/* A name that can stand in the header: what is not printable, or is a space, becomes '_'. */
static void clean_model(char model[sizeof(((struct mp_trace_shape *)0)->model)])
{
    if (model[0] == '\0')
        strcpy(model, "_");
    for (char *at = model; *at != '\0'; at++) {
        if (*at <= ' ' || *at > '~')
            *at = '_';
    }
}

enum mp_status mp_trace_create(const char *path, const struct mp_trace_shape *shape,
                               struct mp_trace_writer **writer_p)
{
    struct mp_trace_writer *writer;
    enum mp_status status;

    if (!shape_is_sane(shape))
        return mp_fail(MP_ERR_UNSUPPORTED, "E_TRACE_SHAPE",
                       "a trace holds up to %u layers, %u experts and %u experts of a token; the "
                       "model has %u, %u and %u",
                       LAYERS_MAX, EXPERTS_MAX, TOP_K_MAX, shape->layers, shape->experts,
                       shape->top_k);
    writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return mp_fail_no_memory("the trace", sizeof(*writer));
    writer->shape = *shape;
    clean_model(writer->shape.model);
    status = mp_out_open(&writer->out, path);
    if (status != MP_OK) {
        free(writer);
        return status;
    }
    fprintf(writer->out.file,
            MAGIC "\n# model=%s layers=%u experts=%u top_k=%u expert_bytes=%" PRIu64 "%s\n"
                  "# step layer sequence position expert:weight...%s\n",
            writer->shape.model, shape->layers, shape->experts, shape->top_k, shape->expert_bytes,
            shape->scores ? SCORES : "", shape->scores ? " | score of expert 0, 1, ..." : "");
    *writer_p = writer;
    return MP_OK;
}

/* A line in pieces. printf takes most of the time of a trace, and decoding waits for it. */
struct line {
    FILE *file;
    size_t used;
    char text[4096];
};

#define PIECE_MAX 32u /* longest thing that is put at once */

static void flush_line(struct line *line)
{
    fwrite(line->text, 1, line->used, line->file);
    line->used = 0;
}

static char *room(struct line *line)
{
    mp_assert(line->used <= sizeof(line->text));
    if (line->used + PIECE_MAX > sizeof(line->text))
        flush_line(line);
    return line->text + line->used;
}

static void put_char(struct line *line, char c)
{
    *room(line) = c;
    line->used++;
}

static void put_number(struct line *line, uint32_t number)
{
    char *at = room(line);
    unsigned digits = 1;

    for (uint32_t rest = number; rest >= 10; rest /= 10)
        digits++;
    line->used += digits;
    for (; digits > 0; number /= 10)
        at[--digits] = (char)('0' + number % 10);
}

/*
 * What %.9g prints. For scores from 1e-4 to 1 that is nine digits behind the point and leading
 * zeros; a float times 10^12 or less is exact in a double, and lrint() rounds ties as printf does.
 */
static void put_float(struct line *line, float value)
{
    static const double starts[] = { 0.1, 0.01, 0.001, 1e-4 };
    static const double scales[] = { 1e9, 1e10, 1e11, 1e12 };
    char *const text = room(line);
    unsigned zeros = 0, width;
    uint32_t digits;

    if (!((double)value >= 1e-4 && value < 1)) {
        line->used += (size_t)snprintf(text, PIECE_MAX, "%.9g", (double)value);
        return;
    }
    while (zeros < 3 && (double)value < starts[zeros])
        zeros++;
    digits = (uint32_t)lrint((double)value * scales[zeros]);
    memcpy(text, "0.000", 5);
    width = 2 + zeros + 9;
    for (unsigned i = width; i > 2 + zeros; digits /= 10)
        text[--i] = (char)('0' + digits % 10);
    while (text[width - 1] == '0')
        width--;
    line->used += width;
}

void mp_trace_write(struct mp_trace_writer *writer, const struct mp_trace_row *row)
{
    const uint32_t numbers[] = { row->step, row->layer, row->sequence, row->position };
    struct line line;

    line.file = writer->out.file;
    line.used = 0;
    for (unsigned i = 0; i < 4; i++) {
        if (i > 0)
            put_char(&line, ' ');
        put_number(&line, numbers[i]);
    }
    for (uint32_t r = 0; r < writer->shape.top_k; r++) {
        put_char(&line, ' ');
        put_number(&line, row->experts[r]);
        put_char(&line, ':');
        put_float(&line, row->weights[r]);
    }
    if (writer->shape.scores) {
        put_char(&line, ' ');
        put_char(&line, '|');
        for (uint32_t e = 0; e < writer->shape.experts; e++) {
            put_char(&line, ' ');
            put_float(&line, row->scores[e]);
        }
    }
    put_char(&line, '\n');
    flush_line(&line);
}

enum mp_status mp_trace_close(struct mp_trace_writer *writer)
{
    enum mp_status status = mp_out_commit(&writer->out);

    free(writer);
    return status;
}

void mp_trace_abandon(struct mp_trace_writer *writer)
{
    if (writer == NULL)
        return;
    mp_out_abandon(&writer->out);
    free(writer);
}

struct mp_trace_reader {
    FILE *file;
    char path[PATH_MAX];
    uint64_t line;
    struct mp_trace_shape shape;
    uint32_t experts[TOP_K_MAX];
    float weights[TOP_K_MAX];
    float scores[EXPERTS_MAX];
    char text[64 * 1024]; /* longer lines are refused */
};

static enum mp_status bad_line(const struct mp_trace_reader *reader, const char *what)
{
    return mp_regular_bad_line(reader->path, reader->line, what);
}

static enum mp_status next_line(struct mp_trace_reader *reader, bool *more_p)
{
    return mp_regular_line(reader->file, reader->path, &reader->line, reader->text,
                           sizeof(reader->text), more_p);
}

/* An unsigned number below `limit` at *at, which moves behind it. */
static bool take_number(const char **at, uint64_t limit, uint64_t *value_p)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    *value_p = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0 && *value_p < limit;
}

static bool take_text(const char **at, const char *text)
{
    const size_t bytes = strlen(text);

    if (strncmp(*at, text, bytes) != 0)
        return false;
    *at += bytes;
    return true;
}

/* "# model=NAME layers=L experts=E top_k=K expert_bytes=B", and perhaps " scores=all" */
static bool parse_shape(const char *at, struct mp_trace_shape *shape)
{
    uint64_t layers, experts, top_k;
    size_t used = 0;

    if (!take_text(&at, "# model=") || *at == ' ')
        return false;
    while (*at > ' ' && *at <= '~' && used < sizeof(shape->model) - 1)
        shape->model[used++] = *at++;
    shape->model[used] = '\0';
    if (!take_text(&at, " layers=") || !take_number(&at, LAYERS_MAX + 1, &layers) ||
        !take_text(&at, " experts=") || !take_number(&at, EXPERTS_MAX + 1, &experts) ||
        !take_text(&at, " top_k=") || !take_number(&at, TOP_K_MAX + 1, &top_k) ||
        !take_text(&at, " expert_bytes=") || !take_number(&at, UINT64_MAX, &shape->expert_bytes))
        return false;
    shape->scores = take_text(&at, SCORES);
    if (*at != '\0')
        return false;
    shape->layers = (uint32_t)layers;
    shape->experts = (uint32_t)experts;
    shape->top_k = (uint32_t)top_k;
    return shape_is_sane(shape);
}

static enum mp_status read_header(struct mp_trace_reader *reader)
{
    enum mp_status status;
    bool more;

    status = next_line(reader, &more);
    if (status != MP_OK)
        return status;
    if (!more || strcmp(reader->text, MAGIC) != 0)
        return bad_line(reader, "not a moepager trace: the first line should be '" MAGIC "'");
    status = next_line(reader, &more);
    if (status != MP_OK)
        return status;
    if (!more || !parse_shape(reader->text, &reader->shape))
        return bad_line(reader, "the shape cannot be read");
    return MP_OK;
}

enum mp_status mp_trace_open(const char *path, struct mp_trace_reader **reader_p)
{
    struct mp_trace_reader *reader = calloc(1, sizeof(*reader));
    uint64_t bytes;
    enum mp_status status;

    if (reader == NULL)
        return mp_fail_no_memory("the trace", sizeof(*reader));
    snprintf(reader->path, sizeof(reader->path), "%s", path);
    status = mp_regular_open(path, &reader->file, &bytes);
    if (status == MP_OK)
        status = read_header(reader);
    if (status != MP_OK) {
        mp_trace_reader_destroy(reader);
        return status;
    }
    *reader_p = reader;
    return MP_OK;
}

const struct mp_trace_shape *mp_trace_get_shape(const struct mp_trace_reader *reader)
{
    return &reader->shape;
}

/* A finite decimal number at *at; strtof() alone would take hexadecimal and "nan" as well. */
static bool take_weight(const char **at, float *weight_p)
{
    const size_t bytes = strspn(*at, "0123456789+-.e");
    char *end;

    if (!isdigit((unsigned char)(*at)[**at == '-']))
        return false;
    *weight_p = strtof(*at, &end);
    if (end != *at + bytes || !isfinite(*weight_p))
        return false;
    *at = end;
    return true;
}

/* What is wrong with the line, or NULL. */
static const char *parse_row(struct mp_trace_reader *reader, struct mp_trace_row *row)
{
    const char *at = reader->text;
    uint64_t v[4];

    for (int i = 0; i < 4; i++) {
        const uint64_t limit = i == 1 ? reader->shape.layers : UINT32_MAX;

        if ((i > 0 && !take_text(&at, " ")) || !take_number(&at, limit, &v[i]))
            return "step, layer, sequence and position should be four numbers in range";
    }
    for (uint32_t r = 0; r < reader->shape.top_k; r++) {
        uint64_t expert;

        if (!take_text(&at, " ") || !take_number(&at, reader->shape.experts, &expert) ||
            !take_text(&at, ":") || !take_weight(&at, &reader->weights[r]))
            return "top_k pairs 'expert:weight' should follow";
        for (uint32_t q = 0; q < r; q++) {
            if (reader->experts[q] == expert)
                return "an expert stands twice";
        }
        reader->experts[r] = (uint32_t)expert;
    }
    if (reader->shape.scores) {
        if (!take_text(&at, " |"))
            return "more than top_k pairs, or no scores behind them";
        for (uint32_t e = 0; e < reader->shape.experts; e++) {
            if (!take_text(&at, " ") || !take_weight(&at, &reader->scores[e]))
                return "a score of each expert should follow";
        }
    }
    *row = (struct mp_trace_row){
        .step = (uint32_t)v[0],
        .layer = (uint32_t)v[1],
        .sequence = (uint32_t)v[2],
        .position = (uint32_t)v[3],
        .experts = reader->experts,
        .weights = reader->weights,
        .scores = reader->shape.scores ? reader->scores : NULL,
    };
    return *at == '\0' ? NULL : "more than belongs there at the end";
}

enum mp_status mp_trace_read(struct mp_trace_reader *reader, struct mp_trace_row *row_p)
{
    for (;;) {
        const char *problem;
        bool more;
        enum mp_status status = next_line(reader, &more);

        if (status != MP_OK)
            return status;
        if (!more) {
            *row_p = (struct mp_trace_row){ .experts = NULL };
            return MP_OK;
        }
        if (reader->text[0] == '#')
            continue;
        problem = parse_row(reader, row_p);
        return problem == NULL ? MP_OK : bad_line(reader, problem);
    }
}

void mp_trace_reader_destroy(struct mp_trace_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->file != NULL)
        fclose(reader->file);
    free(reader);
}
