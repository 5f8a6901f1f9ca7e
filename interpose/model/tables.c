/*
 * Tables of rows in GGUF files. A token reads a few of their rows, which a hash of the last tokens
 * numbers, so that nobody can foresee them and nothing but the kernel's page cache fits: a page at
 * a time, what was read lately stays. Read as a whole they would push experts out, which every
 * token reads.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/model/experts_int.h"
#include "vmm/base/error.h"

/* A smaller one may be read with what is around it. */
#define TABLE_BYTES_MIN (UINT64_C(1) << 20)

static bool is_table(const struct mp_gguf_tensor *tensor)
{
    return tensor->bytes >= TABLE_BYTES_MIN && tensor->dims >= 2 &&
           (strcmp(tensor->name, "per_layer_token_embd.weight") == 0 ||
            strstr(tensor->name, "ngram_embd") != NULL);
}

static int by_place(const void *a, const void *b)
{
    const struct mp_piece *left = a, *right = b;

    if (left->file != right->file)
        return left->file < right->file ? -1 : 1;
    return left->offset_bytes < right->offset_bytes ? -1 : left->offset_bytes > right->offset_bytes;
}

enum mp_status mp_experts_find_tables(const struct mp_gguf *gguf, struct mp_experts *experts)
{
    uint32_t count = 0;

    for (size_t i = 0; i < mp_gguf_count(gguf); i++)
        count += is_table(mp_gguf_tensor(gguf, i));
    if (count == 0)
        return MP_OK;
    experts->tables = calloc(count, sizeof(*experts->tables));
    if (experts->tables == NULL)
        return mp_fail_no_memory("the list of tables", count * sizeof(*experts->tables));
    for (size_t i = 0; i < mp_gguf_count(gguf); i++) {
        const struct mp_gguf_tensor *tensor = mp_gguf_tensor(gguf, i);

        if (!is_table(tensor))
            continue;
        experts->tables[experts->table_count++] = (struct mp_piece){
            .file = tensor->file, .offset_bytes = tensor->offset_bytes, .bytes = tensor->bytes
        };
    }
    qsort(experts->tables, count, sizeof(*experts->tables), by_place);
    return MP_OK;
}

uint64_t mp_experts_table_bytes(const struct mp_experts *experts)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < experts->table_count; i++)
        bytes += experts->tables[i].bytes;
    return bytes;
}
