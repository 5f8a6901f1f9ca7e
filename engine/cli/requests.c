/* Reads a file of requests. */
#include "engine/cli/requests.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"

#define REQUESTS_MAX (1u << 20)
#define GENERATED_MAX (1u << 24)
#define ARRIVAL_MAX 1e9

static enum mp_status bad(const char *name, uint32_t line, const char *what)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_REQUESTS",
                   "'%s', line %u: %s; need SERVER ARRIVAL_S GENERATED TOKEN...",
                   mp_quote(quoted, name, strlen(name)), line, what);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next whole number of the line, at most `most`. */
static bool take_number(const char **at, uint64_t most, uint32_t *value_p)
{
    uint64_t value = 0;
    const char *first;

    while (is_blank(**at))
        (*at)++;
    first = *at;
    for (; **at >= '0' && **at <= '9' && value <= most; (*at)++)
        value = 10 * value + (uint64_t)(**at - '0');
    *value_p = (uint32_t)value;
    return *at > first && value <= most && (is_blank(**at) || **at == '\n' || **at == '\0');
}

static bool take_time(const char **at, double *value_p)
{
    char *end;

    while (is_blank(**at))
        (*at)++;
    if (**at < '0' || **at > '9')
        return false;
    *value_p = strtod(*at, &end);
    *at = end;
    return isfinite(*value_p) && *value_p <= ARRIVAL_MAX && is_blank(**at);
}

static enum mp_status parse_line(const char *name, uint32_t line, const char *at, uint32_t servers,
                                 struct mp_requests *requests, uint64_t *tokens_p)
{
    struct mp_request *request = &requests->list[requests->count];

    if (!take_number(&at, servers - 1, &request->server))
        return bad(name, line, "no server of the cluster");
    if (!take_time(&at, &request->arrival_s))
        return bad(name, line, "no time of arrival");
    if (requests->count > 0 && request->arrival_s < request[-1].arrival_s)
        return bad(name, line, "it arrives before the one above");
    if (!take_number(&at, GENERATED_MAX, &request->generated) || request->generated == 0)
        return bad(name, line, "no number of tokens to generate");
    request->prompt = requests->tokens + *tokens_p;
    request->prompt_tokens = 0;
    for (;;) {
        while (is_blank(*at))
            at++;
        if (*at == '\n' || *at == '\0')
            break;
        if (!take_number(&at, UINT32_MAX, &request->prompt[request->prompt_tokens++]))
            return bad(name, line, "a token is no id");
    }
    if (request->prompt_tokens == 0)
        return bad(name, line, "no prompt");
    *tokens_p += request->prompt_tokens;
    requests->count++;
    return MP_OK;
}

enum mp_status mp_requests_parse(const char *name, const char *text, uint32_t servers,
                                 struct mp_requests *requests_p)
{
    /* A number and what ends it take two bytes. */
    const size_t bytes = strlen(text), numbers = bytes / 2 + 1;
    struct mp_requests requests = { 0 };
    uint64_t tokens = 0;
    uint32_t line = 1;
    enum mp_status status = MP_OK;

    requests.list = calloc(numbers / 4 + 1, sizeof(*requests.list));
    requests.tokens = calloc(numbers, sizeof(uint32_t));
    if (requests.list == NULL || requests.tokens == NULL)
        status = mp_fail_no_memory("the requests", numbers * sizeof(uint32_t));
    for (const char *at = text; status == MP_OK && *at != '\0'; line++) {
        const size_t length = strcspn(at, "\n");

        if (at[strspn(at, " \t\r")] != '\n' && at[strspn(at, " \t\r")] != '\0' && *at != '#') {
            status = requests.count < REQUESTS_MAX
                         ? parse_line(name, line, at, servers, &requests, &tokens)
                         : bad(name, line, "more than 2^20 requests");
        }
        at += length + (at[length] == '\n');
    }
    if (status == MP_OK && requests.count == 0)
        status = bad(name, line, "no request");
    if (status != MP_OK) {
        mp_requests_free(&requests);
        return status;
    }
    *requests_p = requests;
    return MP_OK;
}

void mp_requests_free(struct mp_requests *requests)
{
    free(requests->list);
    free(requests->tokens);
    *requests = (struct mp_requests){ 0 };
}
