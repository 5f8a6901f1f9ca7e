/* A model directory as a GGUF file: the tensors of gated delta networks; see to_gguf.h. */
#include "tests/model/gguf/to_gguf_int.h"

/* Heads of values of the file, in a family whose heads stand in turns: which one of the model? */
static size_t head_of(const struct writer *w, size_t head)
{
    const struct mp_delta *d = &w->config.delta;

    return w->arch->tiled
               ? head % d->key_heads * (d->value_heads / d->key_heads) + head / d->key_heads
               : head;
}

/* Row `row` of values, `each` for a head. */
static size_t value_row(const struct writer *w, size_t row, size_t each)
{
    return head_of(w, row / each) * each + row % each;
}

/* Row `row` of queries, keys, values and gates, in this order, of a matrix that has them by head of
 * keys. */
static size_t grouped_row(const struct mp_delta *d, size_t row)
{
    const size_t D = d->key_dim, K = mp_delta_keys(d), V = mp_delta_values(d);
    const size_t values = V / d->key_heads, group = 2 * D + 2 * values;

    if (row < 2 * K)
        return row % K / D * group + row / K * D + row % D;
    row -= 2 * K;
    return row % V / values * group + 2 * D + row / V * values + row % values;
}

enum order { AS_IS, GROUPED, CHANNELS, VALUES, HEADS };

static size_t row_of(const struct writer *w, enum order order, size_t row)
{
    const struct mp_delta *d = &w->config.delta;
    const size_t first = 2 * (size_t)mp_delta_keys(d);

    switch (order) {
    case AS_IS: return row;
    case GROUPED: return grouped_row(d, row);
    case CHANNELS: return row < first ? row : first + value_row(w, row - first, d->value_dim);
    case VALUES: return value_row(w, row, d->value_dim);
    case HEADS: return value_row(w, row, 1);
    }
    return row;
}

static void put_rows(struct writer *w, enum mp_role role, uint32_t layer,
                     const struct mp_view *view, enum order order, size_t first, size_t rows)
{
    const size_t bytes = mp_wtype_bytes(view->type, view->cols);
    const uint64_t shape[2] = { rows, view->cols };
    char name[128];
    FILE *data;

    mp_arch_format(name, sizeof(name), w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = layer });
    data = to_gguf_begin(w, name, view->type, shape, 2);
    for (size_t row = 0; row < rows; row++)
        fwrite((const char *)view->data + row_of(w, order, first + row) * bytes, 1, bytes, data);
}

/* The output matrix, whose columns are values. */
static void put_out(struct writer *w, uint32_t layer)
{
    const struct mp_view *view = &w->weights->layers[layer].delta.out;
    const uint64_t shape[2] = { view->rows, view->cols };
    const size_t size = mp_wtype_bytes(view->type, 1);
    char name[128];
    FILE *data;

    mp_arch_format(name, sizeof(name), w->arch->names[MP_ROLE_DELTA_OUT].name,
                   &(struct mp_name_numbers){ .layer = layer });
    data = to_gguf_begin(w, name, view->type, shape, 2);
    for (size_t i = 0; i < view->rows * view->cols; i++) {
        const size_t col = value_row(w, i % view->cols, w->config.delta.value_dim);

        fwrite((const char *)view->data + (i / view->cols * view->cols + col) * size, 1, size,
               data);
    }
}

static void put_floats(struct writer *w, enum mp_role role, uint32_t layer, const float *from,
                       enum order order, size_t rows, size_t cols)
{
    const uint64_t shape[2] = { rows, cols };
    char name[128];
    FILE *data;

    mp_arch_format(name, sizeof(name), w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = layer });
    data = cols > 1 ? to_gguf_begin(w, name, MP_WTYPE_F32, shape, 2)
                    : to_gguf_begin(w, name, MP_WTYPE_F32, shape, 1);
    for (size_t row = 0; row < rows; row++)
        fwrite(from + row_of(w, order, row) * cols, sizeof(float), cols, data);
}

void to_gguf_delta(struct writer *w, uint32_t layer)
{
    const struct mp_delta *d = &w->config.delta;
    const struct mp_delta_weights *from = &w->weights->layers[layer].delta;
    const size_t C = mp_delta_channels(d), V = mp_delta_values(d), N = d->value_heads;

    if (from->in.data != NULL && w->job->whole_latent) {
        put_rows(w, MP_ROLE_DELTA_IN, layer, &from->in, AS_IS, 0, C + V);
    } else if (from->in.data != NULL) {
        put_rows(w, MP_ROLE_DELTA_QKV, layer, &from->in, GROUPED, 0, C);
        put_rows(w, MP_ROLE_DELTA_GATE, layer, &from->in, GROUPED, C, V);
    } else {
        put_rows(w, MP_ROLE_DELTA_QKV, layer, &from->qkv, CHANNELS, 0, C);
        put_rows(w, MP_ROLE_DELTA_GATE, layer, &from->gate, VALUES, 0, V);
    }
    if (from->steps.data != NULL) {
        put_rows(w, MP_ROLE_DELTA_STEPS, layer, &from->steps, AS_IS, 0, 2 * N);
    } else {
        put_rows(w, MP_ROLE_DELTA_SHARE, layer, &from->share, HEADS, 0, N);
        put_rows(w, MP_ROLE_DELTA_TIME, layer, &from->time, HEADS, 0, N);
    }
    put_floats(w, MP_ROLE_DELTA_CONV, layer, from->conv, CHANNELS, C, d->conv);
    put_floats(w, MP_ROLE_DELTA_STEP_BIAS, layer, from->step_bias, HEADS, N, 1);
    put_floats(w, MP_ROLE_DELTA_DECAY, layer, from->decay, HEADS, N, 1);
    put_floats(w, MP_ROLE_DELTA_NORM, layer, from->norm, AS_IS, d->value_dim, 1);
    put_out(w, layer);
}
