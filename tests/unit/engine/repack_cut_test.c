/*
 * How items are cut into files: by bytes, by the number of tensors, never within an expert. The
 * list is made up; no file is written.
 */
#include <stdlib.h>

#include "engine/repack/repack_int.h"
#include "tests/support/test.h"

#define TENSORS_MAX 65536u /* of a file */
#define PIECES 3u

/* `count` items of `bytes` bytes; the first `experts` have PIECES items each. */
static struct mp_repack_plan plan_of(size_t count, uint32_t experts, uint64_t bytes)
{
    struct mp_repack_plan plan = { .item_count = count };

    plan.items = calloc(count, sizeof(*plan.items));
    CHECK(plan.items != NULL);
    for (size_t i = 0; i < count; i++) {
        const size_t expert = i / PIECES;

        plan.items[i] = (struct mp_repack_item){
            .name = "w",
            .dtype = MP_DTYPE_BF16,
            .dims = 1,
            .shape = { bytes / 2 },
            .expert = expert < experts ? (uint32_t)expert : UINT32_MAX,
            .bytes = bytes,
        };
    }
    return plan;
}

static void free_plan(struct mp_repack_plan *plan)
{
    for (uint32_t s = 0; s < plan->shard_count; s++)
        free(plan->shards[s].header);
    free(plan->shards);
    free(plan->items);
}

/* Each list: how many items there are, how many experts at its beginning, and the items of the
 * files. */
static void check_cut(size_t count, uint32_t experts, uint64_t shard_bytes, const size_t *want,
                      uint32_t shards)
{
    struct mp_repack_plan plan = plan_of(count, experts, 4);
    size_t first = 0;

    CHECK_EQ(mp_repack_cut(&plan, shard_bytes), MP_OK);
    CHECK_EQ(plan.shard_count, shards);
    for (uint32_t s = 0; s < shards; s++) {
        CHECK_EQ(plan.shards[s].first, first);
        CHECK_EQ(plan.shards[s].count, want[s]);
        CHECK_EQ(plan.shards[s].data_bytes, 4 * want[s]);
        CHECK_EQ(plan.items[first].offset_bytes, 0);
        first += want[s];
        CHECK_EQ(plan.items[first - 1].offset_bytes, 4 * (want[s] - 1));
    }
    CHECK_EQ(first, count);
    free_plan(&plan);
}

static void a_file_has_at_most_so_many_tensors(void)
{
    check_cut(TENSORS_MAX, 0, UINT64_MAX, (size_t[]){ TENSORS_MAX }, 1);
    check_cut(TENSORS_MAX + 1, 0, UINT64_MAX, (size_t[]){ TENSORS_MAX, 1 }, 2);
}

/* 65,536 is no multiple of three: the expert that would cross the limit begins the next file. */
static void an_expert_is_not_cut_by_the_number_of_tensors(void)
{
    const uint32_t experts = TENSORS_MAX / PIECES + 1;

    check_cut(experts * PIECES, experts, UINT64_MAX, (size_t[]){ (experts - 1) * PIECES, PIECES },
              2);
}

/* Items have 4 bytes; a group that is larger than a file gets one of its own. */
static void a_file_has_at_most_so_many_bytes(void)
{
    check_cut(6, 2, 24, (size_t[]){ 6 }, 1);
    check_cut(6, 2, 23, (size_t[]){ 3, 3 }, 2);
    check_cut(5, 1, 1, (size_t[]){ 3, 1, 1 }, 3);
    check_cut(5, 1, 15, (size_t[]){ 3, 2 }, 2);
    check_cut(5, 1, 16, (size_t[]){ 4, 1 }, 2);
}

int main(void)
{
    RUN(a_file_has_at_most_so_many_tensors);
    RUN(an_expert_is_not_cut_by_the_number_of_tensors);
    RUN(a_file_has_at_most_so_many_bytes);
    return 0;
}
