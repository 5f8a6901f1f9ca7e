/*
 * Numbers, flags and arrays of a decision log, for both directions; see decisions_code.h. What a
 * call consists of is in decisions_facts.c.
 */
#include "policy/record/decisions_code.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"

static size_t ids_of(const struct mp_code *code)
{
    return (size_t)code->shape.layers * code->shape.experts;
}

/* A reader's matrices grow with what is read, because the shape is only what the file claims. */
static void take_tables(struct mp_code *code, struct mp_arena *arena)
{
    const uint64_t matrix = (uint64_t)code->shape.tokens_max * code->shape.experts;

    code->evictable = mp_arena_take(arena, ids_of(code), 1);
    if (code->reading) {
        code->resident = mp_arena_take(arena, ids_of(code), 1);
        return;
    }
    for (unsigned i = 0; i < MP_CODE_RECENT; i++) {
        code->recent[i].values = mp_arena_take(arena, matrix, sizeof(float));
        code->recent[i].room = matrix;
    }
}

enum mp_status mp_code_init(struct mp_code *code, FILE *file, bool reading, uint64_t bytes,
                            const struct mp_shape *shape)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    *code = (struct mp_code){ .file = file, .reading = reading, .left = bytes, .shape = *shape };
    take_tables(code, &arena);
    status = mp_arena_open(&arena, "a decision log");
    if (status != MP_OK)
        return status;
    code->block = arena.block;
    take_tables(code, &arena);
    return MP_OK;
}

void mp_code_fini(struct mp_code *code)
{
    if (code->reading) {
        for (unsigned i = 0; i < MP_CODE_RECENT; i++)
            free(code->recent[i].values);
    }
    free(code->block);
    for (unsigned i = 0; i < MP_CODE_BLOCKS; i++)
        free(code->blocks[i].data);
    *code = (struct mp_code){ 0 };
}

void mp_code_recycle(struct mp_code *code)
{
    code->used_blocks = code->kept_blocks;
}

void mp_code_problem(struct mp_code *code, const char *problem)
{
    if (code->problem == NULL)
        code->problem = problem;
}

void *mp_code_room(struct mp_code *code, size_t count, size_t bytes)
{
    struct mp_code_block *block;

    mp_assert(bytes > 0);
    if (code->problem != NULL)
        return NULL;
    if (code->used_blocks == MP_CODE_BLOCKS) {
        mp_code_problem(code, "too many arrays in one call");
        return NULL;
    }
    block = &code->blocks[code->used_blocks++];
    count = count > 0 ? count : 1;
    if (count * bytes > block->room) {
        void *grown = realloc(block->data, count * bytes);

        if (grown == NULL) {
            mp_code_problem(code, "out of memory");
            code->no_memory = true;
            return NULL;
        }
        block->data = grown;
        block->room = count * bytes;
    }
    return block->data;
}

static void code_bytes(struct mp_code *code, void *data, size_t bytes)
{
    if (!code->reading) {
        fwrite(data, 1, bytes, code->file);
        return;
    }
    if (code->problem == NULL && bytes > code->left)
        mp_code_problem(code, "the log is cut off");
    if (code->problem == NULL && fread(data, 1, bytes, code->file) != bytes)
        mp_code_problem(code, "the log is cut off");
    if (code->problem != NULL)
        memset(data, 0, bytes);
    else
        code->left -= bytes;
}

void mp_code_u64(struct mp_code *code, uint64_t *value, uint64_t max)
{
    uint64_t rest = *value;
    unsigned shift = 0;
    uint8_t byte;

    if (!code->reading) {
        for (; rest >= 0x80; rest >>= 7)
            putc_unlocked((int)(rest & 0x7f) | 0x80, code->file);
        putc_unlocked((int)rest, code->file);
        return;
    }
    *value = 0;
    do {
        code_bytes(code, &byte, 1);
        if (shift > 63 || (shift == 63 && byte > 1))
            mp_code_problem(code, "a number is out of range");
        if (code->problem != NULL)
            break;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (*value > max)
        mp_code_problem(code, "a number is out of range");
    if (code->problem != NULL)
        *value = 0;
}

void mp_code_u32(struct mp_code *code, uint32_t *value, uint32_t min, uint32_t max)
{
    uint64_t wide = *value;

    mp_assert(min <= max);
    mp_code_u64(code, &wide, max);
    if (code->reading && wide < min)
        mp_code_problem(code, "a number is out of range");
    *value = (uint32_t)wide;
}

void mp_code_bool(struct mp_code *code, bool *value)
{
    uint32_t number = *value;

    mp_code_u32(code, &number, 0, 1);
    *value = number != 0;
}

void mp_code_u32s(struct mp_code *code, const uint32_t **array, size_t count, uint32_t min,
                  uint32_t max)
{
    uint32_t *to = NULL;

    if (code->reading) {
        if (count > code->left)
            mp_code_problem(code, "the log is cut off");
        to = mp_code_room(code, count, sizeof(uint32_t));
        *array = to;
    }
    for (size_t i = 0; i < count && code->problem == NULL; i++) {
        uint32_t value = code->reading ? 0 : (*array)[i];

        mp_code_u32(code, &value, min, max);
        if (code->reading)
            to[i] = value;
    }
}

void mp_code_floats(struct mp_code *code, const float **array, size_t count, bool finite)
{
    float *to;

    if (!code->reading) {
        fwrite(*array, sizeof(float), count, code->file);
        return;
    }
    if (count > code->left / sizeof(float))
        mp_code_problem(code, "the log is cut off");
    *array = to = mp_code_room(code, count, sizeof(float));
    if (to == NULL)
        return;
    code_bytes(code, to, count * sizeof(float));
    if (!finite)
        return;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(to[i]))
            mp_code_problem(code, "a score is not finite");
    }
}

void mp_code_flags(struct mp_code *code, const uint8_t **array, size_t count)
{
    uint8_t *to = NULL, byte = 0;

    if (code->reading) {
        if (count / 8 > code->left)
            mp_code_problem(code, "the log is cut off");
        to = mp_code_room(code, count, 1);
        *array = to;
    }
    for (size_t i = 0; i < count && code->problem == NULL; i++) {
        if (code->reading && i % 8 == 0)
            code_bytes(code, &byte, 1);
        if (code->reading) {
            to[i] = byte >> i % 8 & 1;
            continue;
        }
        byte = (uint8_t)((i % 8 == 0 ? 0 : byte) | (((*array)[i] != 0) << i % 8));
        if (i % 8 == 7 || i + 1 == count)
            putc_unlocked(byte, code->file);
    }
}

/* Keep a matrix in place of the oldest one. */
static void remember(struct mp_code *code, const float *values, size_t count)
{
    struct mp_code_matrix *matrix = &code->recent[code->next_recent];

    if (code->problem != NULL)
        return;
    if (count > matrix->room) {
        float *grown;

        mp_assert(code->reading); /* a writer has room for all tokens */
        grown = realloc(matrix->values, count * sizeof(float));
        if (grown == NULL) {
            mp_code_problem(code, "out of memory");
            code->no_memory = true;
            return;
        }
        matrix->values = grown;
        matrix->room = count;
    }
    memcpy(matrix->values, values, count * sizeof(float));
    matrix->count = count;
    code->next_recent = (code->next_recent + 1) % MP_CODE_RECENT;
}

/* 1 + the place of an equal matrix among the recent ones; 0: none. */
static uint32_t find_recent(const struct mp_code *code, const float *values, size_t count)
{
    for (uint32_t i = 0; i < MP_CODE_RECENT; i++) {
        if (code->recent[i].count == count &&
            !memcmp(code->recent[i].values, values, count * sizeof(float)))
            return i + 1;
    }
    return 0;
}

void mp_code_matrix(struct mp_code *code, const float **array, size_t count, bool finite)
{
    uint32_t which = code->reading ? 0 : find_recent(code, *array, count);

    mp_code_u32(code, &which, 0, MP_CODE_RECENT);
    if (which == 0) {
        mp_code_floats(code, array, count, finite);
        remember(code, *array, count);
    } else if (code->reading) {
        const struct mp_code_matrix *matrix = &code->recent[which - 1];
        float *to;

        if (matrix->count != count)
            mp_code_problem(code, "an earlier matrix of another size is meant");
        *array = to = mp_code_room(code, count, sizeof(float));
        for (size_t i = 0; i < count && code->problem == NULL; i++) {
            to[i] = matrix->values[i];
            if (finite && !isfinite(to[i]))
                mp_code_problem(code, "a score is not finite");
        }
    }
}
