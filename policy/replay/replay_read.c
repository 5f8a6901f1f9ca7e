/*
 * Traces from files: our own, and the `route_trace v1` CSV of BigMoeOnEdge. Both are untrusted.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "policy/regular.h"
#include "policy/replay/replay.h"
#include "policy/record/trace.h"
#include "vmm/base/error.h"

#define CSV_MAGIC "# route_trace v1"
#define CSV_COLUMNS "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"

#define TOP_K_MAX 64

enum { TURN, PHASE, STEP, LAYER, SLOT, EXPERT, NUMBERS };

struct csv {
    FILE *file;
    const char *path;
    uint64_t line;
    struct mp_replay_trace *trace;
    uint32_t slot;              /* that comes next; 0: a new token */
    uint64_t previous[NUMBERS]; /* row */
    uint64_t chosen[TOP_K_MAX]; /* by the slots of the token so far */
    bool any;
    char text[4096]; /* longer lines are refused */
};

static enum mp_status bad_line(const struct csv *csv, const char *what)
{
    return mp_regular_bad_line(csv->path, csv->line, what);
}

static enum mp_status next_line(struct csv *csv, bool *more_p)
{
    return mp_regular_line(csv->file, csv->path, &csv->line, csv->text, sizeof(csv->text), more_p);
}

/* `before`, then a number of at most `max`, at *at, which moves behind both. */
static bool take(const char **at, const char *before, uint64_t max, uint64_t *value_p)
{
    const size_t bytes = strlen(before);
    uint64_t value = 0;

    if (strncmp(*at, before, bytes) != 0 || !isdigit((unsigned char)(*at)[bytes]))
        return false;
    for (*at += bytes; isdigit((unsigned char)**at); (*at)++) {
        const uint64_t digit = (uint64_t)(**at - '0');

        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *value_p = value;
    return true;
}

/* "# model=... n_layer=L n_expert=E n_expert_used=K" */
static enum mp_status read_shape(struct csv *csv)
{
    uint64_t layers = 0, experts = 0, top_k = 0;
    const char *at;
    bool more;
    enum mp_status status = next_line(csv, &more);

    if (status != MP_OK)
        return status;
    at = strstr(csv->text, " n_layer=");
    if (!more || at == NULL || !take(&at, " n_layer=", 4096, &layers) ||
        !take(&at, " n_expert=", 4096, &experts) ||
        !take(&at, " n_expert_used=", TOP_K_MAX, &top_k) || *at != '\0' || layers == 0 ||
        top_k == 0 || top_k > experts)
        return bad_line(csv, "the shape cannot be read");
    return mp_replay_trace_init(csv->trace, (uint32_t)layers, (uint32_t)experts, (uint32_t)top_k);
}

/* "# layer=L expert_bytes=B dense_bytes=D" for every layer in order, then the columns. */
static enum mp_status read_layers(struct csv *csv)
{
    uint64_t layer, dense;
    enum mp_status status;
    bool more;

    for (uint32_t l = 0; l < csv->trace->layers; l++) {
        const char *at = csv->text;

        status = next_line(csv, &more);
        if (status != MP_OK)
            return status;
        if (!more || !take(&at, "# layer=", 4095, &layer) || layer != l ||
            !take(&at, " expert_bytes=", MP_REPLAY_EXPERT_BYTES_MAX, &csv->trace->layer_bytes[l]) ||
            !take(&at, " dense_bytes=", UINT64_MAX, &dense) || *at != '\0' ||
            csv->trace->layer_bytes[l] == 0)
            return bad_line(csv, "need '# layer=L expert_bytes=B dense_bytes=D', layers in order");
    }
    status = next_line(csv, &more);
    if (status != MP_OK)
        return status;
    return more && !strcmp(csv->text, CSV_COLUMNS)
               ? MP_OK
               : bad_line(csv, "the columns should be '" CSV_COLUMNS "'");
}

/* What is wrong with the row, or NULL. */
static const char *parse_row(const struct csv *csv, uint64_t v[NUMBERS])
{
    const struct mp_replay_trace *trace = csv->trace;
    const char *at = csv->text;
    uint64_t residency, bytes;
    size_t weight;

    if (!take(&at, "", UINT32_MAX, &v[TURN]) || !take(&at, ",", 1, &v[PHASE]) ||
        !take(&at, ",", UINT32_MAX, &v[STEP]) || !take(&at, ",", trace->layers - 1, &v[LAYER]) ||
        !take(&at, ",", trace->top_k - 1, &v[SLOT]) ||
        !take(&at, ",", trace->experts - 1, &v[EXPERT]))
        return "turn, phase, step, layer, slot and expert should be six numbers in range";
    weight = *at == ',' ? strspn(at + 1, "0123456789+-.e") : 0;
    at += 1 + weight;
    if (weight == 0 || !take(&at, ",", UINT32_MAX, &residency) ||
        !take(&at, ",", UINT64_MAX, &bytes) || *at != '\0')
        return "weight, residency and expert_bytes should follow";
    if (v[SLOT] != csv->slot)
        return "the slots of a token are not in order";
    if (v[SLOT] > 0 && (v[TURN] != csv->previous[TURN] || v[PHASE] != csv->previous[PHASE] ||
                        v[STEP] != csv->previous[STEP] || v[LAYER] != csv->previous[LAYER]))
        return "a token ends before its last slot";
    for (uint64_t slot = 0; slot < v[SLOT]; slot++) {
        if (csv->chosen[slot] == v[EXPERT])
            return "a token has an expert twice";
    }
    return NULL;
}

/* A prompt is one batch per layer, and so is a step of decode. */
static enum mp_status add_row(struct csv *csv, const uint64_t v[NUMBERS])
{
    const uint64_t *p = csv->previous;
    const bool begins = !csv->any || v[TURN] != p[TURN] || v[PHASE] != p[PHASE] ||
                        v[LAYER] != p[LAYER] || (v[PHASE] == 1 && v[STEP] != p[STEP]);
    enum mp_status status = MP_OK;

    if (begins)
        status = mp_replay_trace_begin(csv->trace, (uint32_t)v[LAYER], v[PHASE] == 1);
    if (status == MP_OK)
        status = mp_replay_trace_choose(csv->trace, (uint32_t)v[EXPERT]);
    memcpy(csv->previous, v, sizeof(csv->previous));
    csv->chosen[v[SLOT]] = v[EXPERT];
    csv->any = true;
    csv->slot = ((uint32_t)v[SLOT] + 1) % csv->trace->top_k;
    return status;
}

static enum mp_status read_csv(struct csv *csv)
{
    enum mp_status status = read_shape(csv);
    bool more = true;

    if (status == MP_OK)
        status = read_layers(csv);
    while (status == MP_OK) {
        uint64_t v[NUMBERS];
        const char *problem;

        status = next_line(csv, &more);
        if (status != MP_OK || !more)
            break;
        problem = parse_row(csv, v);
        status = problem != NULL ? bad_line(csv, problem) : add_row(csv, v);
    }
    if (status == MP_OK && csv->slot != 0)
        status = bad_line(csv, "the last token ends before its last slot");
    return status;
}

static enum mp_status read_ours(const char *path, struct mp_replay_trace *trace)
{
    struct mp_trace_reader *reader;
    const struct mp_trace_shape *shape;
    uint32_t step = 0, layer = MP_LAYER_ANY;
    struct mp_trace_row row;
    enum mp_status status = mp_trace_open(path, &reader);

    if (status != MP_OK)
        return status;
    shape = mp_trace_get_shape(reader);
    status = mp_replay_trace_init(trace, shape->layers, shape->experts, shape->top_k);
    for (uint32_t l = 0; status == MP_OK && l < shape->layers; l++)
        trace->layer_bytes[l] = shape->expert_bytes;
    while (status == MP_OK) {
        status = mp_trace_read(reader, &row);
        if (status != MP_OK || row.experts == NULL)
            break;
        if (row.layer != layer || row.step != step)
            status = mp_replay_trace_begin(trace, row.layer, row.step > 0);
        layer = row.layer;
        step = row.step;
        if (status == MP_OK && row.scores != NULL)
            status = mp_replay_trace_score(trace, row.scores);
        for (uint32_t r = 0; r < shape->top_k && status == MP_OK; r++)
            status = mp_replay_trace_choose(trace, row.experts[r]);
    }
    mp_trace_reader_destroy(reader);
    return status;
}

/* Open; is it CSV? */
static enum mp_status open_csv(struct csv *csv, bool *is_csv_p)
{
    uint64_t bytes;
    enum mp_status status = mp_regular_open(csv->path, &csv->file, &bytes);

    if (status != MP_OK)
        return status;
    csv->line = 1;
    *is_csv_p = fgets(csv->text, sizeof(csv->text), csv->file) != NULL &&
                !strcmp(csv->text, CSV_MAGIC "\n");
    return MP_OK;
}

enum mp_status mp_replay_trace_read(const char *path, struct mp_replay_trace *trace)
{
    struct csv csv = { .path = path, .trace = trace };
    bool is_csv = false;
    enum mp_status status = open_csv(&csv, &is_csv);

    *trace = (struct mp_replay_trace){ 0 };
    if (status == MP_OK)
        status = is_csv ? read_csv(&csv) : read_ours(path, trace);
    if (csv.file != NULL)
        fclose(csv.file);
    if (status == MP_OK)
        status = mp_replay_trace_end(trace);
    if (status != MP_OK)
        mp_replay_trace_fini(trace);
    return status;
}
