/*
 * Results of requests. Each goes to all live ranks when its request ends, so that whoever dies
 * later takes nobody else's results along. What a full queue refuses is sent again, and a rank
 * leaves only when every live one has all of this one's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "vmm/base/error.h"

#define RESULTS_MAX (1u << 20) /* of all ranks: a message takes them all */

static enum mp_status append(struct mp_rank_results *list, const struct mp_message_result *results,
                             uint64_t count)
{
    struct mp_message_result *more;

    if (count > RESULTS_MAX - list->count)
        return mp_fail(MP_ERR_CLUSTER, "E_MESSAGE", "more than %u results of requests",
                       RESULTS_MAX);
    if (count == 0)
        return MP_OK;
    more = realloc(list->list, (list->count + count) * sizeof(*more));
    if (more == NULL)
        return mp_fail_no_memory("results", (list->count + count) * sizeof(*more));
    memcpy(more + list->count, results, count * sizeof(*more));
    list->list = more;
    list->count += (uint32_t)count;
    return MP_OK;
}

/* Where requests move, one may have been run twice, by a rank that was silent and by its own. */
static bool is_new(const struct mp_rank *rank, uint64_t request)
{
    uint32_t i = 0;

    while (rank->config.give != NULL && i < rank->all.count && rank->all.list[i].request != request)
        i++;
    return rank->config.give == NULL || i == rank->all.count;
}

enum mp_status mp_rank_take_results(struct mp_rank *rank, const struct mp_message *message)
{
    enum mp_status status = MP_OK;

    for (uint64_t i = 0; i < message->head->id && status == MP_OK; i++) {
        if (is_new(rank, message->results[i].request))
            status = append(&rank->all, &message->results[i], 1);
    }
    return status;
}

bool mp_rank_send_results(struct mp_rank *rank, uint32_t to, const struct mp_rank_results *list,
                          uint32_t first)
{
    const uint32_t count = list->count - first;
    const uint64_t bytes = sizeof(struct mp_message_head) + count * sizeof(*list->list);
    struct mp_message_head *head = rank->out;

    mp_rank_head(rank, head, MP_MESSAGE_RESULT, bytes);
    head->id = count;
    if (count > 0)
        memcpy(head + 1, list->list + first, count * sizeof(*list->list));
    return mp_rank_send(rank, to, head, bytes);
}

void mp_rank_tell_results(struct mp_rank *rank)
{
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p != rank->self && rank->peer[p].told < rank->own.count)
            rank->peer[p].told = mp_rank_send_results(rank, p, &rank->own, rank->peer[p].told)
                                     ? rank->own.count
                                     : rank->peer[p].told;
    }
}

enum mp_status mp_rank_add_result(struct mp_rank *rank, const struct mp_message_result *result)
{
    enum mp_status status = append(&rank->own, result, 1);

    if (status != MP_OK)
        return status;
    if (is_new(rank, result->request))
        status = append(&rank->all, result, 1);
    if (status != MP_OK) {
        rank->own.count--;
        return status;
    }
    mp_rank_tell_results(rank);
    return MP_OK;
}

const struct mp_message_result *mp_rank_results(const struct mp_rank *rank, uint32_t *count_p)
{
    *count_p = rank->all.count;
    return rank->all.list;
}

bool mp_rank_reports(const struct mp_rank *rank)
{
    return mp_rank_scheduler(rank) == rank->self;
}
