/*
 * State, fault plans, violations and the control interface of the fake driver.
 */
#include "tests/fakecuda/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_state fake = { .lock = PTHREAD_MUTEX_INITIALIZER };
__thread uintptr_t fake_current;

static const char *const names[] = {
#define X(member, name, parameters) #name,
    MP_CU_CALL_MAP(X)
#undef X
};

#define NAME_COUNT (sizeof(names) / sizeof(names[0]))

_Static_assert(NAME_COUNT <= sizeof(fake.calls) / sizeof(fake.calls[0]), "room for all counts");

static unsigned long long number(const char *variable, unsigned long long missing)
{
    const char *text = getenv(variable);

    return text != NULL ? strtoull(text, NULL, 0) : missing;
}

static void in_child(void)
{
    fake.forked = 1;
}

void fake_configure(void)
{
    if (fake.configured)
        return;
    fake.configured = true;
    fake.devices = (unsigned)number("FAKECUDA_DEVICES", 1);
    if (fake.devices > FAKE_DEVICES_MAX)
        fake.devices = FAKE_DEVICES_MAX;
    fake.memory_bytes = (size_t)number("FAKECUDA_MEMORY", 256ull << 20);
    fake.granule = (size_t)number("FAKECUDA_GRANULE", 2ull << 20);
    fake.host_numa = number("FAKECUDA_HOST_NUMA", 1) != 0;
    fake.numa_id = getenv("FAKECUDA_NUMA_ID") != NULL ? atoi(getenv("FAKECUDA_NUMA_ID")) : 0;
    fake.init_result = (int)number("FAKECUDA_INIT", 0);
    pthread_atfork(NULL, NULL, in_child);
}

/* The result that a plan wants for this call, or 0. */
static int planned(const char *name)
{
    int result = 0;

    for (size_t i = 0; i < sizeof(fake.plans) / sizeof(fake.plans[0]); i++) {
        struct fake_plan *plan = &fake.plans[i];

        if (!plan->used || (strcmp(plan->name, "*") != 0 && strcmp(plan->name, name) != 0))
            continue;
        if (plan->nth > 0) {
            plan->nth--;
            continue;
        }
        result = plan->result;
        plan->used = plan->forever;
    }
    return result;
}

bool fake_enter(const char *name, int *result_p)
{
    pthread_mutex_lock(&fake.lock);
    fake_configure();
    fake.calls_total++;
    for (size_t i = 0; i < NAME_COUNT; i++)
        fake.calls[i] += strcmp(names[i], name) == 0;
    *result_p = planned(name);
    if (*result_p == 0)
        return true;
    pthread_mutex_unlock(&fake.lock);
    return false;
}

int fake_leave(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

void fake_violation(const char *format, ...)
{
    va_list args;

    if (fake.violations++ > 0)
        return;
    va_start(args, format);
    vsnprintf(fake.violation, sizeof(fake.violation), format, args);
    va_end(args);
}

void fake_check_operations(const char *what, unsigned long long address, size_t bytes)
{
    for (size_t i = 0; i < sizeof(fake.operations) / sizeof(fake.operations[0]); i++) {
        const struct fake_operation *op = &fake.operations[i];

        if (op->used && op->address < address + bytes && address < op->address + op->bytes)
            fake_violation("%s of [%#llx, +%zu) under an unfinished %s of [%#llx, +%zu)", what,
                           address, bytes, op->write ? "write" : "read", op->address, op->bytes);
    }
}

/* ---- the control interface ---- */

FAKE_EXPORT void fakecuda_fail(const char *name, uint64_t nth, int result, bool forever)
{
    struct fake_plan *place = NULL;

    pthread_mutex_lock(&fake.lock);
    name = name != NULL ? name : "*";
    for (size_t i = sizeof(fake.plans) / sizeof(fake.plans[0]); i-- > 0;) {
        if (!fake.plans[i].used || strcmp(fake.plans[i].name, name) == 0)
            place = &fake.plans[i];
        if (fake.plans[i].used && strcmp(fake.plans[i].name, name) == 0)
            break;
    }
    if (place == NULL)
        abort();
    *place = (struct fake_plan){ .used = true, .forever = forever, .nth = nth, .result = result };
    snprintf(place->name, sizeof(place->name), "%s", name);
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    memset(fake.plans, 0, sizeof(fake.plans));
    memset(fake.calls, 0, sizeof(fake.calls));
    fake.calls_total = 0;
    fake.violations = 0;
    fake.violation[0] = '\0';
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT uint64_t fakecuda_calls(const char *name)
{
    uint64_t count = 0;

    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; name != NULL && i < NAME_COUNT; i++)
        count += strcmp(names[i], name) == 0 ? fake.calls[i] : 0;
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

FAKE_EXPORT void fakecuda_live(struct fakecuda_live *live)
{
    *live = (struct fakecuda_live){ 0 };
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < sizeof(fake.reservations) / sizeof(fake.reservations[0]); i++)
        live->reservations += fake.reservations[i].used;
    for (size_t i = 0; i < FAKE_TABLE_MAX; i++) {
        live->handles += fake.memories[i].used;
        live->mappings += fake.mappings[i].used;
    }
    for (size_t i = 0; i < sizeof(fake.pinned) / sizeof(fake.pinned[0]); i++)
        live->pinned += fake.pinned[i].used;
    for (unsigned d = 0; d < FAKE_DEVICES_MAX; d++) {
        live->contexts += fake.retained[d];
        live->device_bytes += fake.device_bytes[d];
    }
    live->host_bytes = fake.host_bytes;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_lose(int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.lost = result;
    pthread_mutex_unlock(&fake.lock);
}

/* Is every byte mapped, and may the device touch it? */
static bool is_accessible(unsigned long long address, size_t bytes)
{
    while (bytes > 0) {
        const struct fake_mapping *found = NULL;
        size_t step;

        for (size_t i = 0; i < FAKE_TABLE_MAX && found == NULL; i++) {
            const struct fake_mapping *m = &fake.mappings[i];

            if (m->used && m->device_access && address >= m->address &&
                address < m->address + m->bytes)
                found = m;
        }
        if (found == NULL)
            return false;
        step = (size_t)(found->address + found->bytes - address);
        if (step >= bytes)
            return true;
        address += step;
        bytes -= step;
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
