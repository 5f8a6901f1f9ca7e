/*
 * Messages between ranks: what is right is taken; each number that is wrong, each length, and each
 * byte that was changed at random is refused or harmless.
 */
#include "engine/cluster/message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/hash.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

static const struct mp_message_limits limits = { .ranks = 3,
                                                 .layers = 4,
                                                 .experts = 8,
                                                 .top_k = 2,
                                                 .hidden = 5,
                                                 .tokens_max = 6,
                                                 .expert_bytes = 21 };

#define IDS (4 * 8)
#define STATS_BYTES (sizeof(struct mp_message_stats) + 2 * (IDS + 3) * sizeof(double))

/* A message in memory of just its size, so that a sanitizer sees what is read behind it. */
struct made {
    struct mp_message_head *head;
    size_t bytes;
};

static struct made make(enum mp_message_kind kind, size_t body)
{
    struct made made = { calloc(1, sizeof(*made.head) + body), sizeof(*made.head) + body };

    CHECK(made.head != NULL);
    made.head->magic = MP_MESSAGE_MAGIC;
    made.head->kind = kind;
    made.head->bytes = (uint32_t)made.bytes;
    return made;
}

/* Two experts, 1 and 6, with rows of tokens 0 and 2, and of 1. */
static struct made make_call(void)
{
    struct made made = make(MP_MESSAGE_CALL, mp_message_call_bytes(&limits, 2, 3, 3) -
                                                 sizeof(struct mp_message_head));
    struct mp_message_group *groups = (void *)(made.head + 1);
    uint32_t *rows = (void *)(groups + 2);

    made.head->groups = 2;
    made.head->tokens = 3;
    made.head->rows = 3;
    made.head->layer = 3;
    groups[0] = (struct mp_message_group){ 1, 2 };
    groups[1] = (struct mp_message_group){ 6, 1 };
    rows[0] = 1;
    rows[1] = 4;
    rows[2] = 3;
    return made;
}

static void is_taken(struct made made)
{
    struct mp_message message;

    CHECK_EQ(mp_message_parse(made.head, made.bytes, &limits, &message), MP_OK);
    CHECK(message.head == made.head);
    free(made.head);
}

static void is_refused(struct made made, const char *what)
{
    struct mp_message message;

    CHECK_EQ(mp_message_parse(made.head, made.bytes, &limits, &message), MP_ERR_CLUSTER);
    CHECK_STR(mp_error_last()->code, "E_MESSAGE");
    if (strstr(mp_error_last()->text, what) == NULL) {
        fprintf(stderr, "'%s' lacks '%s'\n", mp_error_last()->text, what);
        exit(1);
    }
    free(made.head);
}

static void right_ones(void)
{
    struct made call = make_call(), made;
    struct mp_message message;

    CHECK_EQ(mp_message_parse(call.head, call.bytes, &limits, &message), MP_OK);
    CHECK_EQ(message.groups[1].expert, 6);
    CHECK_EQ(message.rows[2], 3);
    CHECK(message.values == (const float *)(message.rows + 3));
    free(call.head);
    made = make(MP_MESSAGE_REPLY, 4 * 5 * sizeof(float));
    made.head->rows = 4;
    is_taken(made);
    for (unsigned kind = 0; kind < MP_MESSAGE_KIND_COUNT; kind++) {
        const bool bare =
            kind == MP_MESSAGE_REFUSE || kind == MP_MESSAGE_BEAT || kind == MP_MESSAGE_READY ||
            kind == MP_MESSAGE_SWITCH || kind == MP_MESSAGE_DONE || kind == MP_MESSAGE_RESULT ||
            kind == MP_MESSAGE_GATE || kind == MP_MESSAGE_OPEN || kind == MP_MESSAGE_STAY ||
            kind == MP_MESSAGE_WANT || kind == MP_MESSAGE_BUSY || kind == MP_MESSAGE_TAKE ||
            kind == MP_MESSAGE_LEAVE || kind == MP_MESSAGE_HAVE || kind == MP_MESSAGE_LEFT ||
            kind == MP_MESSAGE_GIVEUP || kind == MP_MESSAGE_FETCH;

        CHECK(mp_message_kind_name(kind)[0] != '\0');
        if (bare)
            is_taken(make(kind, 0));
        else
            is_refused(make(kind, 0), mp_message_kind_name(kind));
        is_refused(make(kind, 3), mp_message_kind_name(kind));
    }
    is_taken(make(MP_MESSAGE_HELLO, sizeof(struct mp_hello)));
    is_taken(make(MP_MESSAGE_STATS, STATS_BYTES));
    is_taken(make(MP_MESSAGE_PLACE, 3 * IDS * sizeof(uint16_t)));
    made = make(MP_MESSAGE_RESULT, 2 * sizeof(struct mp_message_result));
    made.head->id = 2;
    is_taken(made);
}

static void wrong_heads(void)
{
    struct made made = make(MP_MESSAGE_BEAT, 0);

    made.bytes = sizeof(*made.head) - 1;
    is_refused(made, "need at least");
    made = make(MP_MESSAGE_BEAT, 0);
    made.head->magic++;
    is_refused(made, "begins with");
    is_refused(make(MP_MESSAGE_KIND_COUNT, 0), "begins with");
    made = make(MP_MESSAGE_BEAT, 0);
    made.head->bytes++;
    is_refused(made, "the length");
    made = make(MP_MESSAGE_BEAT, 0);
    made.head->layer = limits.layers;
    is_refused(made, "the layer");
}

/* A call with one 32-bit word changed: word 0 is the first one behind the head. */
static void call_with(size_t word, uint32_t value, const char *what)
{
    struct made made = make_call();

    ((uint32_t *)(made.head + 1))[word] = value;
    is_refused(made, what);
}

static void wrong_calls(void)
{
    struct made made;

    call_with(0, 8, "an expert");
    call_with(2, 1, "the order of experts");
    call_with(2, 0, "the order of experts");
    call_with(1, 0, "an expert's rows");
    call_with(1, 4, "an expert's rows");
    call_with(1, 3, "a row"); /* the third row is of an earlier token */
    call_with(1, 1, "the sum of rows");
    call_with(3, 2, "an expert's rows");
    call_with(3, UINT32_MAX, "an expert's rows");
    call_with(4, 6, "a row");
    call_with(5, 1, "a row's order");
    call_with(5, 0, "a row's order");
    made = make_call();
    made.head->groups = 0;
    is_refused(made, "the experts");
    made = make_call();
    made.head->groups = 9;
    is_refused(made, "the experts");
    made = make_call();
    made.head->tokens = 7;
    is_refused(made, "the tokens");
    made = make_call();
    made.head->rows = 7;
    is_refused(made, "the rows");
    made = make_call();
    made.head->rows = 2;
    is_refused(made, "the length");
    made = make(MP_MESSAGE_REPLY, 0);
    is_refused(made, "the rows");
    made = make(MP_MESSAGE_REPLY, 5 * sizeof(float));
    made.head->rows = 13;
    is_refused(made, "the rows");
}

static void wrong_others(void)
{
    static const double wrong[] = { NAN, INFINITY, -1 };
    struct made made = make(MP_MESSAGE_HELLO, sizeof(struct mp_hello));

    memset(made.head + 1, 'x', 32);
    is_refused(made, "a name");
    for (size_t i = 0; i < MP_ARRAY_LEN(wrong); i++) {
        made = make(MP_MESSAGE_STATS, STATS_BYTES);
        ((struct mp_message_stats *)(made.head + 1))->load_s = wrong[i];
        is_refused(made, "no number");
        made = make(MP_MESSAGE_STATS, STATS_BYTES);
        ((double *)((char *)made.head + made.bytes))[-1] = wrong[i];
        is_refused(made, "no number");
    }
    made = make(MP_MESSAGE_PLACE, 3 * IDS * sizeof(uint16_t));
    ((uint16_t *)((char *)made.head + made.bytes))[-1] = 2;
    is_refused(made, "a device");
    made = make(MP_MESSAGE_RESULT, 0);
    made.head->id = UINT64_MAX;
    is_refused(made, "the number of results");
    made = make(MP_MESSAGE_RESULT, 0);
    made.head->id = 1;
    is_refused(made, "the length");
}

/* An expert's bytes, and what they hash to. */
static struct made make_bytes(void)
{
    struct made made = make(MP_MESSAGE_BYTES, sizeof(uint64_t) + 21);
    uint64_t *hash = (uint64_t *)(made.head + 1);

    memset(hash + 1, 'x', 21);
    *hash = mp_hash_bytes(hash + 1, 21);
    made.head->groups = 7;
    return made;
}

static void bytes_of_an_expert(void)
{
    struct made made = make_bytes();
    struct mp_message message;

    CHECK_EQ(mp_message_parse(made.head, made.bytes, &limits, &message), MP_OK);
    CHECK_EQ(message.bytes_count, 21);
    CHECK(message.bytes == (const char *)made.head + sizeof(*made.head) + sizeof(uint64_t));
    free(made.head);
    made = make_bytes();
    ((char *)made.head)[made.bytes - 1] ^= 1;
    is_refused(made, "the hash of its bytes");
    made = make_bytes();
    made.head->groups = 8;
    is_refused(made, "an expert");
    is_refused(make(MP_MESSAGE_BYTES, 0), "the length");
    is_refused(make(MP_MESSAGE_BYTES, sizeof(uint64_t)), "the length");
    is_refused(make(MP_MESSAGE_BYTES, sizeof(uint64_t) + 22), "the length");
    made = make(MP_MESSAGE_FETCH, 0);
    made.head->groups = 8;
    is_refused(made, "an expert");
}

/* Two experts, 4 and 9, that are there. */
static struct made make_have(void)
{
    struct made made = make(MP_MESSAGE_HAVE, 2 * sizeof(struct mp_message_copy));
    struct mp_message_copy *copies = (void *)(made.head + 1);

    made.head->groups = 2;
    copies[0].id = 4;
    copies[1].id = 9;
    return made;
}

static void lists_of_experts(void)
{
    struct made made = make_have();

    is_taken(make_have());
    ((struct mp_message_copy *)(made.head + 1))[1].id = 4;
    is_refused(made, "the order of experts");
    made = make_have();
    ((struct mp_message_copy *)(made.head + 1))[1].id = IDS;
    is_refused(made, "an expert");
    made = make_have();
    made.head->groups = UINT32_MAX;
    is_refused(made, "the length");
    for (enum mp_message_kind kind = MP_MESSAGE_LEAVE; kind <= MP_MESSAGE_LEFT;
         kind += MP_MESSAGE_LEFT - MP_MESSAGE_LEAVE) {
        made = make(kind, 2 * sizeof(uint32_t));
        made.head->groups = 2;
        is_refused(made, "the order of experts");
    }
    made = make(MP_MESSAGE_LEAVE, sizeof(uint32_t));
    made.head->groups = 1;
    memset(made.head + 1, 0xff, sizeof(uint32_t));
    is_refused(made, "an expert");
    made = make(MP_MESSAGE_LEAVE, sizeof(uint32_t));
    made.head->groups = 2;
    is_refused(made, "the length");
}

/* Each byte of a call at its extremes: whatever is taken is within the limits. */
static void any_byte(void)
{
    static const unsigned char values[] = { 0, 1, 0x7f, 0x80, 0xff };
    const size_t bytes = (size_t)mp_message_call_bytes(&limits, 2, 3, 3);

    for (size_t at = 0; at < bytes; at++) {
        for (size_t v = 0; v < sizeof(values); v++) {
            struct made made = make_call();
            struct mp_message message;

            ((unsigned char *)made.head)[at] = values[v];
            if (mp_message_parse(made.head, made.bytes, &limits, &message) == MP_OK &&
                message.head->kind == MP_MESSAGE_CALL) {
                uint32_t sum = 0;

                for (uint32_t g = 0; g < message.head->groups; g++)
                    sum += message.groups[g].rows;
                CHECK_EQ(sum, message.head->rows);
                CHECK((const char *)(message.values + message.head->tokens * 5) ==
                      (const char *)made.head + bytes);
            }
            free(made.head);
        }
    }
}

static void sizes(void)
{
    struct mp_message_limits large = limits;
    uint64_t bytes;

    CHECK_EQ(mp_message_bytes_max(&limits, &bytes), MP_OK);
    CHECK(bytes >= mp_message_call_bytes(&limits, 8, 6, 12));
    CHECK(bytes >= mp_message_reply_bytes(&limits, 12));
    CHECK(bytes >= sizeof(struct mp_message_head) + 3 * IDS * 2);
    CHECK(bytes >= sizeof(struct mp_message_head) + IDS * sizeof(struct mp_message_copy));
    large.expert_bytes = 1u << 30;
    CHECK_EQ(mp_message_bytes_max(&large, &bytes), MP_OK);
    CHECK(bytes > large.expert_bytes);
    large.expert_bytes = UINT64_MAX;
    CHECK_EQ(mp_message_bytes_max(&large, &bytes), MP_ERR_CONFIG);
    large = limits;
    large.tokens_max = 1u << 18;
    large.hidden = 1u << 14;
    CHECK_EQ(mp_message_bytes_max(&large, &bytes), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CLUSTER_SIZE");
    large.hidden = UINT32_MAX;
    large.tokens_max = UINT32_MAX;
    CHECK_EQ(mp_message_bytes_max(&large, &bytes), MP_ERR_CONFIG);
}

int main(void)
{
    RUN(right_ones);
    RUN(wrong_heads);
    RUN(wrong_calls);
    RUN(wrong_others);
    RUN(bytes_of_an_expert);
    RUN(lists_of_experts);
    RUN(any_byte);
    RUN(sizes);
    return 0;
}
