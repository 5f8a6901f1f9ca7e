#ifndef MP_CLUSTER_HASH_H
#define MP_CLUSTER_HASH_H

#include <stdint.h>
#include <string.h>

/*
 * A number of bytes, to find what differs by accident: not against somebody who wants it to be the
 * same. Eight bytes at a time, because what is hashed can be many GiB.
 */
static inline void mp_hash_word(uint64_t *hash, uint64_t word)
{
    const uint64_t product = (*hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);

    *hash = product ^ product >> 32;
}

/* Add these bytes and their number to a hash. */
static inline void mp_hash_add(uint64_t *hash, const void *data, uint64_t bytes)
{
    const char *at = data;
    uint64_t word;

    mp_hash_word(hash, bytes);
    for (; bytes >= sizeof(word); at += sizeof(word), bytes -= sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        mp_hash_word(hash, word);
    }
    word = 0;
    if (bytes > 0)
        memcpy(&word, at, bytes);
    mp_hash_word(hash, word);
}

static inline uint64_t mp_hash_bytes(const void *data, uint64_t bytes)
{
    uint64_t hash = 0;

    mp_hash_add(&hash, data, bytes);
    return hash;
}

#endif
