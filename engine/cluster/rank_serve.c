/* Computes experts for other ranks, as they ask: between two layers, or while this one waits. */
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* The experts of a call as the engine takes them; numbers of tokens are those of the message. */
static void list_groups(struct mp_rank *rank, const struct mp_message_group *groups,
                        const uint32_t *rows, uint32_t count)
{
    const uint32_t R = rank->limits.top_k;
    uint32_t at = 0;

    for (uint32_t g = 0; g < count; g++) {
        rank->list[g] = (struct mp_served){
            .expert = groups[g].expert,
            .rows = { rank->list_tokens + at, rank->list_ranks + at, groups[g].rows },
        };
        for (uint32_t i = 0; i < groups[g].rows; i++, at++) {
            rank->list_tokens[at] = rows[at] / R;
            rank->list_ranks[at] = rows[at] % R;
        }
    }
}

enum mp_status mp_rank_compute(struct mp_rank *rank, const struct mp_message *message)
{
    const struct mp_message_head *head = message->head;

    list_groups(rank, message->groups, message->rows, head->groups);
    return mp_engine_serve(rank->engine, head->layer, rank->list, head->groups, message->values,
                           rank->served);
}

void mp_rank_refuse(struct mp_rank *rank, uint32_t to, uint64_t id)
{
    struct mp_message_head head;

    mp_rank_head(rank, &head, MP_MESSAGE_REFUSE, sizeof(head));
    head.id = id;
    (void)mp_rank_send(rank, to, &head, sizeof(head));
}

/* Has it the expert, or is it to keep it? What is in memory counts for the next placement, too: who
 * heard that it is here asks before the switch. */
static bool may_compute(const struct mp_rank *rank, uint32_t id)
{
    return mp_rank_may_have(rank, rank->self, id) || mp_rank_keeps(rank, rank->self, id) ||
           mp_pager_has(mp_engine_pager(rank->engine), id);
}

/* All that is asked for, or may it read? */
static bool may_serve(const struct mp_rank *rank, const struct mp_message *message)
{
    const struct mp_message_head *head = message->head;

    if (rank->engine == NULL || !rank->placed)
        return false;
    for (uint32_t g = 0; g < head->groups && !rank->config.reads; g++) {
        if (!may_compute(rank, head->layer * rank->limits.experts + message->groups[g].expert))
            return false;
    }
    return true;
}

static void reply(struct mp_rank *rank, uint32_t to, const struct mp_message *message)
{
    const size_t H = rank->limits.hidden;
    const uint64_t bytes = mp_message_reply_bytes(&rank->limits, message->head->rows);
    struct mp_message_head *head = rank->out;
    float *values = (void *)(head + 1);

    mp_rank_head(rank, head, MP_MESSAGE_REPLY, bytes);
    head->id = message->head->id;
    head->layer = message->head->layer;
    head->rows = message->head->rows;
    for (uint32_t i = 0; i < head->rows; i++)
        memcpy(values + i * H, rank->served + message->rows[i] * H, H * sizeof(float));
    (void)mp_rank_send(rank, to, head, bytes);
}

enum mp_status mp_rank_serve(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    enum mp_status status;

    if (!may_serve(rank, message)) {
        mp_rank_refuse(rank, from, message->head->id);
        return MP_OK;
    }
    status = mp_rank_compute(rank, message);
    if (status != MP_OK) {
        mp_rank_refuse(rank, from, message->head->id);
        if (status == MP_ERR_CANCELED)
            return status;
        mp_log_warn("cluster", "rank %u asked for experts of MoE layer %u: %s", from,
                    message->head->layer, mp_error_last()->text);
        mp_error_clear();
        return MP_OK;
    }
    reply(rank, from, message);
    mp_rank_note_message(rank, "serve", rank->found_ns, message->head);
    rank->report.served++;
    return MP_OK;
}
