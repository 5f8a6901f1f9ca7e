#ifndef MP_REQUESTS_H
#define MP_REQUESTS_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * A file of requests: a line for each, `SERVER ARRIVAL_S GENERATED TOKEN...`, which says whose
 * users ask, when after the start, how many tokens they want, and the ids of the prompt. Empty
 * lines and those that begin with # do not count.
 */
struct mp_request {
    uint32_t server, generated, prompt_tokens;
    double arrival_s;
    uint32_t *prompt; /* part of the block of all */
};

struct mp_requests {
    struct mp_request *list;
    uint32_t count;
    uint32_t *tokens; /* of all prompts */
};

/* MP_ERR_CONFIG E_REQUESTS, with the line: no number, out of range, no prompt, not in the order of
 * arrival. Servers are below `servers`, tokens below 2^32. */
enum mp_status mp_requests_parse(const char *name, const char *text, uint32_t servers,
                                 struct mp_requests *requests_p) MP_MUST_CHECK;
void mp_requests_free(struct mp_requests *requests);

#endif
