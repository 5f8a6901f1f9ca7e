/*
 * Messages between ranks: whatever another process sends is refused with one line, or everything
 * in it is within the limits and within its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/hash.h"
#include "engine/cluster/message.h"
#include "tests/fuzz/text.h"
#include "vmm/base/error.h"

static const struct mp_message_limits limits = { .ranks = 3,
                                                 .layers = 4,
                                                 .experts = 8,
                                                 .top_k = 2,
                                                 .hidden = 3,
                                                 .tokens_max = 6,
                                                 .expert_bytes = 100 };

static void read_call(const struct mp_message *message, const char *end)
{
    const struct mp_message_head *head = message->head;
    uint32_t sum = 0;
    volatile float last;

    for (uint32_t g = 0; g < head->groups; g++) {
        FUZZ_CHECK(message->groups[g].expert < limits.experts);
        sum += message->groups[g].rows;
    }
    FUZZ_CHECK(sum == head->rows);
    for (uint32_t r = 0; r < head->rows; r++)
        FUZZ_CHECK(message->rows[r] < head->tokens * limits.top_k);
    last = message->values[head->tokens * limits.hidden - 1];
    (void)last;
    FUZZ_CHECK((const char *)(message->values + head->tokens * limits.hidden) == end);
}

static void read_ids(const struct mp_message *message, const char *end)
{
    const uint32_t count = message->head->groups;
    const bool bare = message->head->kind != MP_MESSAGE_HAVE;

    for (uint32_t i = 0; i < count; i++)
        FUZZ_CHECK((bare ? message->leaving[i] : message->copies[i].id) <
                   limits.layers * limits.experts);
    FUZZ_CHECK((bare ? (const char *)(message->leaving + count)
                     : (const char *)(message->copies + count)) == end);
}

/* One of a thousand million random messages has the right hash, so it is put there. */
static void set_hash(char *data, size_t bytes)
{
    const size_t before = sizeof(struct mp_message_head) + sizeof(uint64_t);
    const struct mp_message_head *head = (const void *)data;

    if (bytes > before && head->kind == MP_MESSAGE_BYTES && head->tokens % 2 == 0)
        *(uint64_t *)(head + 1) = mp_hash_bytes(data + before, bytes - before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *copy = malloc(bytes + 1); /* aligned, and of just this size */
    struct mp_message message;
    enum mp_status status;

    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, bytes);
    set_hash(copy, bytes);
    mp_error_clear();
    status = mp_message_parse(copy, bytes, &limits, &message);
    if (status != MP_OK) {
        FUZZ_CHECK(status == MP_ERR_CLUSTER && !strcmp(mp_error_last()->code, "E_MESSAGE"));
        fuzz_check_message(mp_error_last()->text);
    } else if (message.head->kind == MP_MESSAGE_CALL) {
        read_call(&message, copy + bytes);
    } else if (message.head->kind == MP_MESSAGE_REPLY) {
        FUZZ_CHECK((const char *)(message.values + message.head->rows * limits.hidden) ==
                   copy + bytes);
    } else if (message.head->kind == MP_MESSAGE_LEAVE || message.head->kind == MP_MESSAGE_HAVE ||
               message.head->kind == MP_MESSAGE_LEFT) {
        read_ids(&message, copy + bytes);
    } else if (message.head->kind == MP_MESSAGE_BYTES) {
        FUZZ_CHECK(message.bytes_count > 0 && message.bytes_count <= limits.expert_bytes);
        FUZZ_CHECK((const char *)message.bytes + message.bytes_count == copy + bytes);
        FUZZ_CHECK(message.head->groups < limits.experts);
    }
    free(copy);
    return 0;
}
