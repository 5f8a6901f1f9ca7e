/*
 * The check of a message, by kind. It is what other processes can reach, so every number of it is
 * taken to be wrong until it was compared.
 */
#include "engine/cluster/message.h"

#include <math.h>
#include <string.h>

#include "engine/cluster/hash.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define RESULTS_MAX (1u << 20)
#define BYTES_MAX (UINT64_C(1) << 31)

static const char *const kind_names[] = {
#define X(upper, text) [MP_MESSAGE_##upper] = text,
    MP_MESSAGE_MAP(X)
#undef X
};

const char *mp_message_kind_name(enum mp_message_kind kind)
{
    return (unsigned)kind < MP_MESSAGE_KIND_COUNT ? kind_names[kind] : "unknown";
}

static uint64_t ids(const struct mp_message_limits *limits)
{
    return (uint64_t)limits->layers * limits->experts;
}

uint64_t mp_message_call_bytes(const struct mp_message_limits *limits, uint32_t groups,
                               uint32_t tokens, uint32_t rows)
{
    return sizeof(struct mp_message_head) + groups * sizeof(struct mp_message_group) +
           rows * sizeof(uint32_t) + (uint64_t)tokens * limits->hidden * sizeof(float);
}

uint64_t mp_message_reply_bytes(const struct mp_message_limits *limits, uint32_t rows)
{
    return sizeof(struct mp_message_head) + (uint64_t)rows * limits->hidden * sizeof(float);
}

static uint64_t stats_bytes(const struct mp_message_limits *limits)
{
    return sizeof(struct mp_message_head) + sizeof(struct mp_message_stats) +
           2 * (ids(limits) + limits->ranks) * sizeof(double);
}

static uint64_t place_bytes(const struct mp_message_limits *limits)
{
    return sizeof(struct mp_message_head) + limits->ranks * ids(limits) * sizeof(uint16_t);
}

enum mp_status mp_message_bytes_max(const struct mp_message_limits *limits, uint64_t *bytes_p)
{
    const uint64_t rows = (uint64_t)limits->tokens_max * limits->top_k;
    uint64_t sizes[] = {
        mp_message_call_bytes(limits, limits->experts, limits->tokens_max, 0) +
            rows * sizeof(uint32_t),
        sizeof(struct mp_message_head) + rows * limits->hidden * sizeof(float),
        stats_bytes(limits),
        place_bytes(limits),
        sizeof(struct mp_message_head) + RESULTS_MAX * sizeof(struct mp_message_result),
        sizeof(struct mp_message_head) + ids(limits) * sizeof(struct mp_message_copy),
        sizeof(struct mp_message_head) + sizeof(uint64_t) + limits->expert_bytes,
    };
    uint64_t most = 0;

    /* Each factor is below 2^21, so that no product wraps. */
    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++)
        most = sizes[i] > most ? sizes[i] : most;
    if (limits->expert_bytes >= BYTES_MAX || limits->hidden >= 1u << 21 || rows >= 1u << 21 ||
        limits->ranks >= 1u << 10 || ids(limits) >= UINT64_C(1) << 25 || most >= BYTES_MAX)
        return mp_fail(
            MP_ERR_CONFIG, "E_CLUSTER_SIZE",
            "%u tokens with %u experts of %u values each, or an expert of %llu bytes, do "
            "not fit into a message of 2 GiB; lower --prefill-tokens",
            limits->tokens_max, limits->top_k, limits->hidden,
            (unsigned long long)limits->expert_bytes);
    *bytes_p = most;
    return MP_OK;
}

static enum mp_status bad(const struct mp_message_head *head, const char *what, uint64_t got,
                          uint64_t need)
{
    return mp_fail(MP_ERR_CLUSTER, "E_MESSAGE", "a message of kind '%s': %s is %llu, need %llu",
                   mp_message_kind_name(head->kind), what, (unsigned long long)got,
                   (unsigned long long)need);
}

static enum mp_status check_bytes(const struct mp_message_head *head, uint64_t need)
{
    return head->bytes == need ? MP_OK : bad(head, "the length", head->bytes, need);
}

/* A number of a CALL or REPLY that counts from 1. */
static enum mp_status check_count(const struct mp_message_head *head, const char *what,
                                  uint64_t value, uint64_t most)
{
    return value >= 1 && value <= most ? MP_OK : bad(head, what, value, most);
}

/* rows(count) of one group: below `end`, and no token twice. */
static enum mp_status check_rows(const struct mp_message_head *head,
                                 const struct mp_message_limits *limits, const uint32_t *rows,
                                 uint32_t count)
{
    const uint64_t end = (uint64_t)head->tokens * limits->top_k;

    for (uint32_t i = 0; i < count; i++) {
        if (rows[i] >= end)
            return bad(head, "a row", rows[i], end);
        if (i > 0 && rows[i] / limits->top_k <= rows[i - 1] / limits->top_k)
            return bad(head, "a row's order", rows[i], rows[i - 1]);
    }
    return MP_OK;
}

static enum mp_status check_groups(const struct mp_message_limits *limits,
                                   const struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    uint64_t sum = 0;
    enum mp_status status = MP_OK;

    for (uint32_t g = 0; g < head->groups && status == MP_OK; g++) {
        const struct mp_message_group *group = &message->groups[g];

        if (group->expert >= limits->experts)
            return bad(head, "an expert", group->expert, limits->experts);
        if (g > 0 && group->expert <= group[-1].expert)
            return bad(head, "the order of experts", group->expert, group[-1].expert);
        status = check_count(head, "an expert's rows", group->rows, head->rows - sum);
        if (status == MP_OK)
            status = check_rows(head, limits, message->rows + sum, group->rows);
        sum += group->rows;
    }
    if (status == MP_OK && sum != head->rows)
        return bad(head, "the sum of rows", sum, head->rows);
    return status;
}

static enum mp_status parse_call(const struct mp_message_limits *limits, const char *body,
                                 struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    enum mp_status status = check_count(head, "the experts", head->groups, limits->experts);

    if (status == MP_OK)
        status = check_count(head, "the tokens", head->tokens, limits->tokens_max);
    if (status == MP_OK)
        status = check_count(head, "the rows", head->rows, (uint64_t)head->tokens * limits->top_k);
    if (status == MP_OK)
        status = check_bytes(head,
                             mp_message_call_bytes(limits, head->groups, head->tokens, head->rows));
    if (status != MP_OK)
        return status;
    message->groups = (const void *)body;
    message->rows = (const void *)(message->groups + head->groups);
    message->values = (const void *)(message->rows + head->rows);
    return check_groups(limits, message);
}

static enum mp_status parse_reply(const struct mp_message_limits *limits, const char *body,
                                  struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    enum mp_status status =
        check_count(head, "the rows", head->rows, (uint64_t)limits->tokens_max * limits->top_k);

    message->values = (const void *)body;
    return status == MP_OK ? check_bytes(head, mp_message_reply_bytes(limits, head->rows)) : status;
}

static enum mp_status parse_hello(const char *body, struct mp_message *message)
{
    const struct mp_hello *hello = (const void *)body;
    const enum mp_status status =
        check_bytes(message->head, sizeof(*message->head) + sizeof(*hello));

    if (status != MP_OK)
        return status;
    if (memchr(hello->version, 0, sizeof(hello->version)) == NULL ||
        memchr(hello->kernels, 0, sizeof(hello->kernels)) == NULL)
        return bad(message->head, "the length of a name", sizeof(hello->version),
                   sizeof(hello->version) - 1);
    message->hello = hello;
    return MP_OK;
}

static bool are_counts(const double *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(values[i]) || values[i] < 0)
            return false;
    }
    return true;
}

static enum mp_status parse_stats(const struct mp_message_limits *limits, const char *body,
                                  struct mp_message *message)
{
    const struct mp_message_stats *stats = (const void *)body;
    const enum mp_status status = check_bytes(message->head, stats_bytes(limits));
    const double times[] = { status == MP_OK ? stats->seconds : 0,
                             status == MP_OK ? stats->steps : 0,
                             status == MP_OK ? stats->load_s : 0 };

    if (status != MP_OK)
        return status;
    message->stats = stats;
    message->tokens = (const void *)(stats + 1);
    message->calls = message->tokens + ids(limits);
    message->call_s = message->calls + ids(limits);
    message->row_s = message->call_s + limits->ranks;
    if (!are_counts(times, MP_ARRAY_LEN(times)) ||
        !are_counts(message->tokens, 2 * (ids(limits) + limits->ranks)))
        return bad(message->head, "a count that is no number >= 0", 1, 0);
    return MP_OK;
}

static enum mp_status parse_place(const struct mp_message_limits *limits, const char *body,
                                  struct mp_message *message)
{
    const uint16_t *device = (const void *)body;
    const enum mp_status status = check_bytes(message->head, place_bytes(limits));

    if (status != MP_OK)
        return status;
    for (uint64_t i = 0; i < limits->ranks * ids(limits); i++) {
        if (device[i] > 1)
            return bad(message->head, "a device", device[i], 1);
    }
    message->device = device;
    return MP_OK;
}

static enum mp_status parse_result(const char *body, struct mp_message *message)
{
    const struct mp_message_head *head = message->head;

    if (head->id > RESULTS_MAX)
        return bad(head, "the number of results", head->id, RESULTS_MAX);
    message->results = (const void *)body;
    return check_bytes(head, sizeof(*head) + head->id * sizeof(struct mp_message_result));
}

/* An id of a list, in its order. */
static enum mp_status check_id(const struct mp_message_head *head,
                               const struct mp_message_limits *limits, uint32_t id,
                               const uint32_t *before)
{
    if (id >= ids(limits))
        return bad(head, "an expert", id, ids(limits));
    if (before != NULL && id <= *before)
        return bad(head, "the order of experts", id, *before);
    return MP_OK;
}

static enum mp_status parse_leave(const struct mp_message_limits *limits, const char *body,
                                  struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    enum mp_status status =
        check_bytes(head, sizeof(*head) + (uint64_t)head->groups * sizeof(uint32_t));

    message->leaving = (const void *)body;
    for (uint32_t i = 0; i < head->groups && status == MP_OK; i++)
        status =
            check_id(head, limits, message->leaving[i], i > 0 ? &message->leaving[i - 1] : NULL);
    return status;
}

static enum mp_status parse_have(const struct mp_message_limits *limits, const char *body,
                                 struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    enum mp_status status =
        check_bytes(head, sizeof(*head) + (uint64_t)head->groups * sizeof(struct mp_message_copy));

    message->copies = (const void *)body;
    for (uint32_t i = 0; i < head->groups && status == MP_OK; i++)
        status = check_id(head, limits, message->copies[i].id,
                          i > 0 ? &message->copies[i - 1].id : NULL);
    return status;
}

static enum mp_status parse_fetch(const struct mp_message_limits *limits,
                                  const struct mp_message_head *head)
{
    if (head->groups >= limits->experts)
        return bad(head, "an expert", head->groups, limits->experts);
    return check_bytes(head, sizeof(*head));
}

static enum mp_status parse_bytes(const struct mp_message_limits *limits, const char *body,
                                  struct mp_message *message)
{
    const struct mp_message_head *head = message->head;
    const uint64_t before = sizeof(*head) + sizeof(uint64_t);
    uint64_t hash;

    if (head->groups >= limits->experts)
        return bad(head, "an expert", head->groups, limits->experts);
    if (head->bytes <= before || head->bytes - before > limits->expert_bytes)
        return bad(head, "the length", head->bytes, before + limits->expert_bytes);
    message->hash = (const void *)body;
    message->bytes = body + sizeof(uint64_t);
    message->bytes_count = head->bytes - before;
    hash = mp_hash_bytes(message->bytes, message->bytes_count);
    return hash == *message->hash ? MP_OK
                                  : bad(head, "the hash of its bytes", hash, *message->hash);
}

enum mp_status mp_message_parse(const void *data, size_t bytes,
                                const struct mp_message_limits *limits,
                                struct mp_message *message_p)
{
    const struct mp_message_head *head = data;
    const char *body = (const char *)data + sizeof(*head);

    *message_p = (struct mp_message){ .head = head };
    if (bytes < sizeof(*head))
        return mp_fail(MP_ERR_CLUSTER, "E_MESSAGE", "a message of %zu bytes, need at least %zu",
                       bytes, sizeof(*head));
    if (head->magic != MP_MESSAGE_MAGIC || head->kind >= MP_MESSAGE_KIND_COUNT)
        return mp_fail(MP_ERR_CLUSTER, "E_MESSAGE",
                       "a message begins with %08x, kind %u; need %08x and a kind below %u",
                       head->magic, head->kind, MP_MESSAGE_MAGIC, MP_MESSAGE_KIND_COUNT);
    if (head->bytes != bytes)
        return bad(head, "the length", head->bytes, bytes);
    if (head->layer >= limits->layers)
        return bad(head, "the layer", head->layer, limits->layers);
    switch ((enum mp_message_kind)head->kind) {
    case MP_MESSAGE_HELLO: return parse_hello(body, message_p);
    case MP_MESSAGE_CALL: return parse_call(limits, body, message_p);
    case MP_MESSAGE_REPLY: return parse_reply(limits, body, message_p);
    case MP_MESSAGE_STATS: return parse_stats(limits, body, message_p);
    case MP_MESSAGE_PLACE: return parse_place(limits, body, message_p);
    case MP_MESSAGE_RESULT: return parse_result(body, message_p);
    case MP_MESSAGE_LEAVE:
    case MP_MESSAGE_LEFT: return parse_leave(limits, body, message_p);
    case MP_MESSAGE_HAVE: return parse_have(limits, body, message_p);
    case MP_MESSAGE_FETCH: return parse_fetch(limits, head);
    case MP_MESSAGE_BYTES: return parse_bytes(limits, body, message_p);
    default: return check_bytes(head, sizeof(*head));
    }
}
