/* Operations on all counters; see counters.h. Nothing is counted here. */
#include "vmm/output/counters.h"

#include <inttypes.h>
#include <string.h>

#include "vmm/base/assert.h"

void mp_counters_reset(struct mp_counters *counters)
{
    memset(counters, 0, sizeof(*counters));
    counters->size = sizeof(*counters);
    counters->version = MP_COUNTERS_VERSION;
}

void mp_counters_merge(struct mp_counters *to, const struct mp_counters *from)
{
    mp_assert(to->version == MP_COUNTERS_VERSION);
    mp_assert(from->version == MP_COUNTERS_VERSION);
#define ADD(name, key, text) to->name += from->name;
#define LARGER(name, key, text) to->name = to->name > from->name ? to->name : from->name;
    MP_COUNTERS(ADD, LARGER)
#undef ADD
#undef LARGER
}

struct mp_counters mp_counters_since(const struct mp_counters *now,
                                     const struct mp_counters *before)
{
    struct mp_counters since = *now;

    mp_assert(now->version == before->version);
#define SUBTRACT(name, key, text) since.name -= before->name;
#define KEEP(name, key, text)
    MP_COUNTERS(SUBTRACT, KEEP)
#undef SUBTRACT
#undef KEEP
    return since;
}

void mp_counters_json(const struct mp_counters *counters, struct mp_json_out *json, const char *key)
{
    mp_assert(counters->version == MP_COUNTERS_VERSION);
    mp_json_object_begin(json, key);
    mp_json_put_u64(json, "version", counters->version);
#define X(name, entry, text) mp_json_put_u64(json, entry, counters->name);
    MP_COUNTERS(X, X)
#undef X
    mp_json_object_end(json);
}
