/*
 * Memory of a template and of a rendering: taken piece by piece, freed at once.
 */
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

#define BLOCK_BYTES 65536u
#define ALIGN_BYTES 16u

struct mp_jinja_block {
    struct mp_jinja_block *next;
    size_t used, bytes;
    _Alignas(ALIGN_BYTES) char data[];
};

void *mp_jinja_alloc(struct mp_jinja_memory *m, size_t bytes)
{
    struct mp_jinja_block *block = m->blocks;
    void *at;

    if (m->status != MP_OK)
        return NULL;
    if (bytes > m->left) {
        mp_jinja_fail(m, "it takes too much memory", NULL, 0);
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (block == NULL || block->bytes - block->used < bytes) {
        const size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;

        block = calloc(1, sizeof(*block) + size);
        if (block == NULL) {
            m->status = mp_fail_no_memory("a chat template", size);
            return NULL;
        }
        block->bytes = size;
        block->next = m->blocks;
        m->blocks = block;
    }
    m->left -= bytes < m->left ? bytes : m->left;
    at = block->data + block->used;
    block->used += bytes;
    return at;
}

void *mp_jinja_grow(struct mp_jinja_memory *m, void *list, size_t count, size_t *capacity,
                    size_t size)
{
    void *grown;

    if (count < *capacity)
        return list;
    grown = mp_jinja_alloc(m, (count * 2 + 4) * size);
    if (grown == NULL)
        return NULL;
    if (count > 0)
        memcpy(grown, list, count * size);
    *capacity = count * 2 + 4;
    return grown;
}

void mp_jinja_memory_free(struct mp_jinja_memory *m)
{
    while (m->blocks != NULL) {
        struct mp_jinja_block *block = m->blocks;

        m->blocks = block->next;
        free(block);
    }
}

void mp_jinja_fail(struct mp_jinja_memory *m, const char *what, const char *name, size_t bytes)
{
    char quoted[MP_QUOTE_BYTES] = "", file[MP_QUOTE_BYTES];
    const char *const open = name != NULL ? " '" : "", *const close = name != NULL ? "'" : "";

    if (m->status != MP_OK)
        return;
    if (name != NULL)
        mp_quote(quoted, name, bytes);
    mp_quote(file, m->name, strlen(m->name));
    m->status = m->parsing
                    ? mp_fail(MP_ERR_MODEL, "E_CHAT_TEMPLATE",
                              "chat template in '%s', line %u: %s%s%s%s; use --prompt without "
                              "--chat",
                              file, m->line, what, open, quoted, close)
                    : mp_fail(MP_ERR_CONFIG, "E_CHAT_RENDER",
                              "the chat template in '%s' fails in line %u: %s%s%s%s", file, m->line,
                              what, open, quoted, close);
}
