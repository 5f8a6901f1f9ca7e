/*
 * Messages between ranks: whatever another process sends is refused with one line, or everything
 * in it is within the limits and within its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/message.h"
#include "tests/fuzz/text.h"
#include "vmm/base/error.h"

static const struct mp_message_limits limits = {
    .ranks = 3, .layers = 4, .experts = 8, .top_k = 2, .hidden = 3, .tokens_max = 6
};

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *copy = malloc(bytes + 1); /* aligned, and of just this size */
    struct mp_message message;
    enum mp_status status;

    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, bytes);
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
    }
    free(copy);
    return 0;
}
