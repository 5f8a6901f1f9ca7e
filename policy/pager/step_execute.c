/*
 * Executes the needs of a step: those that need no load at once, the others as their bytes arrive,
 * waiting for whichever ends first, a read or a computation.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/pager/step_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* `need` is a number of the pager: an index in step->needs, times slices, plus the slice. */
static const struct mp_need *need_of(const struct mp_step *step, uint32_t need)
{
    mp_assert(need / step->slices < step->need_count);
    return &step->needs[need / step->slices];
}

static void add_work(const struct mp_step *step, uint32_t need, struct mp_expert_work *work)
{
    const uint32_t expert = need_of(step, need)->expert;

    work->need = need;
    work->expert = expert;
    work->slice = need % step->slices;
    work->slices = need_of(step, need)->elsewhere ? step->slices : 1;
    work->executor = step->executors[need / step->slices];
    work->rows.token = step->row_token + step->first[expert];
    work->rows.rank = step->row_rank + step->first[expert];
    work->rows.count = step->first[expert + 1] - step->first[expert];
}

static void note_ended(struct mp_step *step, uint32_t need)
{
    if (!need_of(step, need)->elsewhere)
        mp_pager_done(step->config.pager, need);
}

/* Let work of one executor be computed. */
static enum mp_status begin_work(struct mp_step *step, uint32_t layer,
                                 const struct mp_expert_work *work, uint32_t count)
{
    const struct mp_step_executor *executor = &step->config.executors[work->executor];
    const enum mp_status status = executor->begin(executor->ctx, layer, work, count);

    mp_assert(count > 0);
    mp_assert(work->executor < step->costs.executor_count);
    if (status != MP_OK)
        return status;
    if (step->config.ops->ended != NULL) {
        step->under_way += count;
        return MP_OK;
    }
    for (uint32_t i = 0; i < count; i++)
        note_ended(step, work[i].need);
    return MP_OK;
}

/* Let step->work be computed, in its order. */
static enum mp_status hand_over(struct mp_step *step, uint32_t layer, uint32_t count)
{
    enum mp_status status = MP_OK;
    uint32_t end;

    mp_assert(count <= step->need_count * step->slices);
    for (uint32_t i = 0; i < count && status == MP_OK; i = end) {
        end = i + 1;
        while (end < count && step->work[end].executor == step->work[i].executor)
            end++;
        status = begin_work(step, layer, step->work + i, end - i);
    }
    return status;
}

/* Wait for work that is under way. */
static enum mp_status take_ended(struct mp_step *step)
{
    uint32_t count = 0;
    const enum mp_status status = step->config.ops->ended(step->config.ctx, step->ended, &count);

    mp_assert(step->under_way > 0);
    mp_assert(step->config.ops->ended != NULL);
    mp_assert(count > 0 && count <= step->under_way);
    step->under_way -= count;
    for (uint32_t i = 0; i < count; i++)
        note_ended(step, step->ended[i]);
    return status;
}

enum mp_status mp_step_execute_elsewhere(struct mp_step *step, uint32_t layer, bool peers)
{
    uint32_t count = 0;

    for (uint32_t x = 0; x < step->costs.executor_count; x++) {
        if ((step->costs.executors[x].reads == MP_READS_PEER) != peers)
            continue;
        for (uint32_t i = 0; i < step->need_count; i++) {
            if (step->needs[i].elsewhere && step->executors[i] == x)
                add_work(step, i * step->slices, &step->work[count++]);
        }
    }
    return hand_over(step, layer, count);
}

static int compare_need(const void *a, const void *b)
{
    const uint32_t x = ((const struct mp_expert_work *)a)->need;
    const uint32_t y = ((const struct mp_expert_work *)b)->need;

    return (x > y) - (x < y);
}

/* List all needs that are ready, after waiting for one if there is none. 0: none is left, or none
 * is ready. */
static enum mp_status collect(struct mp_step *step, bool wait, uint32_t *count_p)
{
    struct mp_pager *pager = step->config.pager;
    struct mp_ready ready;
    enum mp_status status =
        wait ? mp_pager_next_or(pager, step->under_way > 0 ? &step->interrupt : NULL, &ready)
             : mp_pager_next_early(pager, &ready);

    *count_p = 0;
    while (status == MP_OK && ready.need != MP_NEED_NONE) {
        struct mp_expert_work *work = &step->work[(*count_p)++];

        add_work(step, ready.need, work);
        memcpy(work->pieces, ready.pieces, sizeof(work->pieces));
        status = wait ? mp_pager_next_now(pager, &ready) : mp_pager_next_early(pager, &ready);
    }
    if (step->slices > 1) /* slices of one expert side by side */
        qsort(step->work, *count_p, sizeof(step->work[0]), compare_need);
    return status;
}

/* Nothing is ready, and no work has ended: so all needs have been handed over. May the layer be
 * left with its work under way? */
static bool leaves(const struct mp_step *step)
{
    return step->leaves && !step->config.ops->any_ended(step->config.ctx);
}

enum mp_status mp_step_execute_some(struct mp_step *step, uint32_t layer, bool wait, bool *more_p)
{
    uint32_t count;
    enum mp_status status = collect(step, wait, &count);

    *more_p = true;
    if (status == MP_OK && count > 0)
        return hand_over(step, layer, count);
    if (wait && step->under_way > 0 &&
        (status == MP_ERR_BUSY || (status == MP_OK && !leaves(step))))
        return take_ended(step);
    *more_p = false;
    return status;
}

enum mp_status mp_step_execute(struct mp_step *step, uint32_t layer)
{
    enum mp_status status;
    bool more;

    do {
        status = mp_step_execute_some(step, layer, true, &more);
    } while (status == MP_OK && more);
    return status;
}

enum mp_status mp_step_wait(struct mp_step *step)
{
    enum mp_status status = MP_OK;

    while (step->under_way > 0 && status == MP_OK)
        status = take_ended(step);
    return status;
}

void mp_step_drain(struct mp_step *step)
{
    const struct mp_error before = *mp_error_last();

    while (step->under_way > 0)
        (void)take_ended(step);
    mp_error_set(&before);
}
