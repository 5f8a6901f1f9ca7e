/*
 * What tests set in the fake driver, and ask of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/stream.h"

static void plan(const char *name, const void *site, uint64_t nth, int result, bool forever)
{
    struct fake_plan *place = NULL;

    pthread_mutex_lock(&fake.lock);
    name = name != NULL ? name : "*";
    for (size_t i = sizeof(fake.plans) / sizeof(fake.plans[0]); i-- > 0;) {
        const bool same = fake.plans[i].used && fake.plans[i].site == site &&
                          strcmp(fake.plans[i].name, name) == 0;

        if (!fake.plans[i].used || same)
            place = &fake.plans[i];
        if (same)
            break;
    }
    if (place == NULL)
        abort();
    *place = (struct fake_plan){
        .used = true, .forever = forever, .site = site, .nth = nth, .result = result
    };
    snprintf(place->name, sizeof(place->name), "%s", name);
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_fail(const char *name, uint64_t nth, int result, bool forever)
{
    plan(name, NULL, nth, result, forever);
}

FAKE_EXPORT void fakecuda_fail_site(const void *site, uint64_t nth, int result, bool forever)
{
    plan(NULL, site, nth, result, forever);
}

FAKE_EXPORT void fakecuda_fail_undo(int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.undo_result = result;
    fake.failed_calls = false;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_clear(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.stalled = false;
    fake_clear_streams();
    fake_clear_memory();
    memset(fake.retained, 0, sizeof(fake.retained));
    fake.lost = 0;
    fake.found++;
    pthread_mutex_unlock(&fake.lock);
    fakecuda_reset();
}

FAKE_EXPORT void fakecuda_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    memset(fake.plans, 0, sizeof(fake.plans));
    memset(fake.calls, 0, sizeof(fake.calls));
    fake.calls_total = 0;
    fake.work = (struct fakecuda_work){ 0 };
    fake.violations = 0;
    fake.failed_calls = false;
    fake.undo_result = 0;
    if (fake.lost_by_plan) {
        fake.lost = 0;
        fake.found++;
    }
    fake.lost_by_plan = false;
    fake.calls_too_many = 0;
    fake.violation[0] = '\0';
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT uint64_t fakecuda_calls(const char *name)
{
    uint64_t count = 0;

    pthread_mutex_lock(&fake.lock);
    if (name != NULL) {
        for (size_t i = 0; i < FAKE_CALL_COUNT; i++)
            count += strcmp(fake_call_name((enum fake_call)i), name) == 0 ? fake.calls[i] : 0;
    }
    if (name == NULL)
        count = fake.calls_total;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

FAKE_EXPORT unsigned fakecuda_violations(char *text, size_t bytes)
{
    unsigned count;

    pthread_mutex_lock(&fake.lock);
    count = fake.violations;
    if (bytes > 0)
        snprintf(text, bytes, "%s", fake.violation);
    pthread_mutex_unlock(&fake.lock);
    return count;
}

FAKE_EXPORT void fakecuda_work(struct fakecuda_work *work)
{
    pthread_mutex_lock(&fake.lock);
    *work = fake.work;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_live(struct fakecuda_live *live)
{
    *live = (struct fakecuda_live){ 0 };
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < sizeof(fake.reservations) / sizeof(fake.reservations[0]); i++)
        live->reservations += fake.reservations[i].used;
    for (size_t i = 0; i < FAKE_TABLE_MAX; i++)
        live->handles += fake.memories[i].used;
    live->mappings = fake_region_count(FAKE_MAPPING);
    live->pinned = fake_region_count(FAKE_PINNED);
    live->allocations = fake_region_count(FAKE_ALLOCATED);
    live->streams = fake_object_count(FAKE_STREAM);
    live->events = fake_object_count(FAKE_EVENT);
    live->modules = fake_object_count(FAKE_MODULE);
    live->graphs = fake_object_count(FAKE_GRAPH) + fake_object_count(FAKE_EXEC);
    for (unsigned d = 0; d < FAKE_DEVICES_MAX; d++) {
        live->contexts += fake.retained[d];
        live->device_bytes += fake.device_bytes[d];
    }
    for (unsigned n = 0; n < FAKECUDA_NODES_MAX; n++)
        live->host_bytes[n] = fake.host_bytes[n];
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_lose(int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.lost = result;
    fake.found += result == 0;
    fake_wake_all();
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT uint64_t fakecuda_calls_too_many(void)
{
    uint64_t count;

    pthread_mutex_lock(&fake.lock);
    count = fake.calls_too_many;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

/* Is every byte mapped, and may the device touch it? */
static bool is_accessible(unsigned long long address, size_t bytes)
{
    while (bytes > 0) {
        const struct fake_region *region = fake_region_at(address);
        unsigned long long step;

        if (region == NULL || region->device_access == MP_CU_ACCESS_NONE)
            return false;
        step = region->address + region->bytes - address;
        if (step >= bytes)
            return true;
        address += step;
        bytes -= (size_t)step;
    }
    return true;
}

FAKE_EXPORT unsigned fakecuda_begin(unsigned long long address, size_t bytes, bool write)
{
    unsigned i = 0;

    pthread_mutex_lock(&fake.lock);
    while (i < sizeof(fake.operations) / sizeof(fake.operations[0]) && fake.operations[i].used)
        i++;
    if (i == sizeof(fake.operations) / sizeof(fake.operations[0]))
        abort();
    fake.operations[i] = (struct fake_operation){ true, write, address, bytes };
    if (!is_accessible(address, bytes)) {
        fake_violation("%s of a hole in [%#llx, +%zu)", write ? "write" : "read", address, bytes);
        fake.lost = MP_CU_ERROR_ILLEGAL_ADDRESS;
    }
    pthread_mutex_unlock(&fake.lock);
    return i;
}

FAKE_EXPORT void fakecuda_end(unsigned operation)
{
    pthread_mutex_lock(&fake.lock);
    if (operation >= sizeof(fake.operations) / sizeof(fake.operations[0]) ||
        !fake.operations[operation].used)
        abort();
    fake.operations[operation].used = false;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_stall(bool stalled)
{
    pthread_mutex_lock(&fake.lock);
    fake.stalled = stalled;
    fake_wake_all();
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_settle(void)
{
    pthread_mutex_lock(&fake.lock);
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        while (fake_streams[s].next != NULL)
            fake_wait_moved();
    }
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_timing(uint64_t seed, unsigned lazy_ms)
{
    pthread_mutex_lock(&fake.lock);
    fake_configure();
    fake.seed = seed;
    fake.lazy_ns = UINT64_C(1000000) * lazy_ms;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_elapsed(float ms)
{
    pthread_mutex_lock(&fake.lock);
    fake.elapsed_ms = ms;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT unsigned fakecuda_sites(struct fakecuda_site *sites, unsigned max)
{
    unsigned count;

    pthread_mutex_lock(&fake.lock);
    count = fake.site_count;
    for (unsigned i = 0; i < count && i < max; i++) {
        sites[i] = (struct fakecuda_site){ .address = fake.sites[i].address,
                                           .call = fake_call_name(fake.sites[i].call),
                                           .calls = fake.sites[i].calls,
                                           .failed = fake.sites[i].failed };
    }
    pthread_mutex_unlock(&fake.lock);
    return count;
}
