/*
 * Products of experts whose matrices are transposed in the file, or whose MXFP4 nibbles and scales
 * are apart (struct mp_ffn). A few rows at a time are put in order, in scratch of the thread, and
 * multiplied from there like any others: so the bits are those of the same matrices as other files
 * have them.
 */
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"
#include "kernels/cpu/mxfp4.h"

/* A matrix as it is stored: its rows are columns of the wanted one, `step` elements apart. */
struct columns {
    const char *part[2]; /* of the stored rows: the first `split` ones, and the others */
    size_t split, count;
    size_t width; /* of stored rows, in elements */
    size_t step;
};

#define COPY(type)                                                                                 \
    for (size_t c = 0; c < from->count; c++) {                                                     \
        const bool second = c >= from->split;                                                      \
        const char *row = from->part[second] +                                                     \
                          ((c - (second ? from->split : 0)) * from->width + first) * sizeof(type); \
        for (size_t r = 0; r < rows; r++)                                                          \
            memcpy((type *)tile + r * from->count + c, row + r * from->step * sizeof(type),        \
                   sizeof(type));                                                                  \
    }

/* Rows of the wanted matrix, the first of which is stored column `first`. */
static void put_in_order(const struct columns *from, size_t first, size_t rows,
                         size_t element_bytes, void *tile)
{
    if (element_bytes == sizeof(uint16_t))
        COPY(uint16_t)
    if (element_bytes == sizeof(uint32_t))
        COPY(uint32_t)
}

static float *tile_of(const struct mp_engine *engine, unsigned thread)
{
    return engine->state.tile + thread * mp_engine_tile_floats(engine->config.model);
}

void mp_cpu_transposed_up(const struct mp_engine *engine, const struct mp_ffn_work *work,
                          unsigned piece, size_t first, size_t end, unsigned thread)
{
    const struct mp_ffn *ffn = &work->ffn;
    const size_t F = ffn->gate.rows, H = ffn->gate.cols;
    const enum mp_wtype type = ffn->gate.type;
    const struct columns from = { .part = { ffn->gate.data, ffn->up.data },
                                  .split = mp_transposed_rows(H),
                                  .count = H,
                                  .width = 2 * F,
                                  .step = 2 };
    float *tile = tile_of(engine, thread);
    float *y = piece == MP_PIECE_UP ? work->up : work->gate;

    for (size_t row = first, rows; row < end; row += rows) {
        rows = end - row < MP_TILE_ROWS ? end - row : MP_TILE_ROWS;
        put_in_order(&from, 2 * row + (piece == MP_PIECE_UP), rows, mp_wtype_bytes(type, 1), tile);
        engine->config.kernels->matmul(y + row, F, tile, type, H, work->x, H, rows, H,
                                       work->tokens);
    }
}

void mp_cpu_transposed_down(const struct mp_engine *engine, const struct mp_ffn_work *work,
                            size_t first, size_t end, bool add, unsigned thread)
{
    const struct mp_view *down = &work->ffn.down;
    const size_t H = down->rows, F = down->cols;
    const struct columns from = {
        .part = { down->data, NULL }, .split = F, .count = F, .width = H, .step = 1
    };
    float *tile = tile_of(engine, thread);

    for (size_t row = first, rows; row < end; row += rows) {
        rows = end - row < MP_TILE_ROWS ? end - row : MP_TILE_ROWS;
        put_in_order(&from, row, rows, mp_wtype_bytes(down->type, 1), tile);
        engine->config.kernels->matmul_blocked(work->y + row, H, tile, down->type, F, work->gate, F,
                                               rows, F, work->tokens, add);
    }
}

/* ---- MXFP4 apart */

/* Rows first, first + step, ... of a matrix become rows of blocks. */
static void put_blocks(const struct mp_view *view, const void *scales, size_t first, size_t rows,
                       size_t step, void *tile)
{
    const size_t blocks = view->cols / 32;
    unsigned char *out = tile;

    for (size_t r = 0; r < rows; r++) {
        const size_t row = (first + r * step) * blocks;

        for (size_t b = 0; b < blocks; b++, out += MP_MXFP4_BLOCK)
            mp_mxfp4_join(out, (const unsigned char *)view->data + (row + b) * MP_MXFP4_NIBBLES,
                          ((const unsigned char *)scales)[row + b]);
    }
}

void mp_cpu_apart_up(const struct mp_engine *engine, const struct mp_ffn_work *work, unsigned piece,
                     size_t first, size_t end, unsigned thread)
{
    const struct mp_ffn *ffn = &work->ffn;
    const size_t F = ffn->gate.rows, H = ffn->gate.cols;
    float *tile = tile_of(engine, thread), *y = piece == MP_PIECE_UP ? work->up : work->gate;

    for (size_t row = first, rows; row < end; row += rows) {
        rows = end - row < MP_TILE_ROWS ? end - row : MP_TILE_ROWS;
        put_blocks(&ffn->gate, ffn->up.data, 2 * row + (piece == MP_PIECE_UP), rows, 2, tile);
        engine->config.kernels->matmul(y + row, F, tile, MP_WTYPE_MXFP4, H, work->x, H, rows, H,
                                       work->tokens);
    }
}

void mp_cpu_apart_down(const struct mp_engine *engine, const struct mp_ffn_work *work, size_t first,
                       size_t end, bool add, unsigned thread)
{
    const struct mp_ffn *ffn = &work->ffn;
    const size_t H = ffn->down.rows, F = ffn->down.cols;
    float *tile = tile_of(engine, thread);

    for (size_t row = first, rows; row < end; row += rows) {
        rows = end - row < MP_TILE_ROWS ? end - row : MP_TILE_ROWS;
        put_blocks(&ffn->down, ffn->scales, row, rows, 1, tile);
        engine->config.kernels->matmul_blocked(work->y + row, H, tile, MP_WTYPE_MXFP4, F,
                                               work->gate, F, rows, F, work->tokens, add);
    }
}
