/*
 * Arenas: parts stand apart, aligned and zeroed; sizes that no memory has are refused.
 */
#include <stdlib.h>

#include "tests/support/test.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

struct parts {
    char *odd;
    double *numbers;
    char *none;
    uint64_t *last;
};

static void take(struct parts *parts, struct mp_arena *arena)
{
    parts->odd = mp_arena_take(arena, 3, 1);
    parts->numbers = mp_arena_take(arena, 5, sizeof(double));
    parts->none = mp_arena_take(arena, 0, 8);
    parts->last = mp_arena_take(arena, 2, sizeof(uint64_t));
}

static void parts_stand_apart(void)
{
    struct mp_arena arena = { 0 };
    struct parts parts;

    take(&parts, &arena);
    CHECK(parts.odd == NULL && parts.last == NULL);
    CHECK_EQ(mp_arena_open(&arena, "parts"), MP_OK);
    take(&parts, &arena);
    CHECK_EQ(arena.used, arena.bytes);
    CHECK((void *)parts.odd == arena.block);
    CHECK((char *)parts.numbers >= parts.odd + 3);
    CHECK((char *)parts.last >= (char *)(parts.numbers + 5));
    CHECK((char *)(parts.last + 2) <= (char *)arena.block + arena.bytes);
    CHECK_EQ((uintptr_t)parts.numbers % _Alignof(max_align_t), 0);
    CHECK_EQ((uintptr_t)parts.last % _Alignof(max_align_t), 0);
    for (size_t i = 0; i < arena.bytes; i++)
        CHECK_EQ(((char *)arena.block)[i], 0);
    free(arena.block);
}

static void what_does_not_fit_is_out_of_memory(void)
{
    static const uint64_t sizes[][2] = {
        { UINT64_MAX, 2 }, { UINT64_MAX, 1 }, { SIZE_MAX / 2 + 1, 1 }, { UINT64_MAX / 8, 8 }
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct mp_arena arena = { 0 };

        CHECK(mp_arena_take(&arena, 1, 1) == NULL);
        CHECK(mp_arena_take(&arena, sizes[i][0], sizes[i][1]) == NULL);
        CHECK_EQ(mp_arena_open(&arena, "parts"), MP_ERR_NO_MEMORY);
        CHECK(arena.block == NULL);
        CHECK(strstr(mp_error_last()->text, "for parts") != NULL);
    }
}

static void an_empty_one_is_no_failure(void)
{
    struct mp_arena arena = { 0 };

    CHECK_EQ(mp_arena_open(&arena, "nothing"), MP_OK);
    free(arena.block);
}

int main(void)
{
    RUN(parts_stand_apart);
    RUN(what_does_not_fit_is_out_of_memory);
    RUN(an_empty_one_is_no_failure);
    return 0;
}
