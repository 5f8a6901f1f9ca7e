/*
 * State, fault plans and violations of the fake driver.
 */
#include "tests/device/fakecuda/stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_state fake = { .lock = PTHREAD_MUTEX_INITIALIZER };
__thread uintptr_t fake_current;
__thread enum fake_call fake_this_call;

static const char *const names[] = {
#define X(member, name, parameters, arguments) #name,
    MP_CU_CALL_MAP(X)
#undef X
};

const char *fake_call_name(enum fake_call call)
{
    return names[call];
}

unsigned long long fake_setting(const char *variable, unsigned long long missing)
{
    const char *text = getenv(variable);

    return text != NULL ? strtoull(text, NULL, 0) : missing;
}

/* A child must not begin with the lock held by a thread that it does not have. */
static void before_fork(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&fake.lock);
}

static void in_child(void)
{
    fake.forked = 1;
    pthread_mutex_unlock(&fake.lock);
}

/* A program that broke a law has failed, whatever it made of its results. */
static void at_end(void)
{
    if (fake.forked || fake.violations == 0)
        return;
    fprintf(stderr, "fakecuda: %u violations, first: %s\n", fake.violations, fake.violation);
    fflush(NULL);
    _exit(97);
}

static void plan_from_environment(void)
{
    const char *text = getenv("FAKECUDA_FAIL");
    struct fake_plan *plan = &fake.plans[0];
    unsigned long long nth;

    if (text == NULL || sscanf(text, "%63[^,],%llu,%d", plan->name, &nth, &plan->result) != 3)
        return;
    plan->nth = nth;
    plan->used = true;
}

static void numa_ids_from_environment(void)
{
    const char *text = getenv("FAKECUDA_NUMA_ID");

    for (unsigned d = 0; text != NULL && d < FAKE_DEVICES_MAX; d++) {
        fake.numa_id[d] = atoi(text);
        if (strchr(text, ',') != NULL)
            text = strchr(text, ',') + 1;
    }
}

void fake_configure(void)
{
    unsigned devices;

    if (fake.configured)
        return;
    fake.configured = true;
    devices = (unsigned)fake_setting("FAKECUDA_DEVICES", 1);
    fake.mig = fake_setting("FAKECUDA_MIG", 0) != 0;
    fake_choose_visible(devices < FAKE_DEVICES_MAX ? devices : FAKE_DEVICES_MAX);
    fake.memory_bytes = (size_t)fake_setting("FAKECUDA_MEMORY", 256ull << 20);
    fake.context_bytes = (size_t)fake_setting("FAKECUDA_CONTEXT", 0);
    fake.node_bytes = (size_t)fake_setting("FAKECUDA_NODE", 0);
    fake.capability = (unsigned)fake_setting("FAKECUDA_CAPABILITY", 90);
    fake.version = (unsigned)fake_setting("FAKECUDA_VERSION", 13000);
    fake.granule = (size_t)fake_setting("FAKECUDA_GRANULE", 2ull << 20);
    fake.host_granule = (size_t)fake_setting("FAKECUDA_HOST_GRANULE", fake.granule);
    fake.registered_max = (size_t)fake_setting("FAKECUDA_REGISTER", SIZE_MAX);
    fake.host_numa = fake_setting("FAKECUDA_HOST_NUMA", 1) != 0;
    fake.host_numa_breaks = fake_setting("FAKECUDA_HOST_NUMA", 1) == 2;
    fake.host_nodes = (unsigned)fake_setting("FAKECUDA_HOST_NODES", 1);
    if (fake.host_nodes > FAKECUDA_NODES_MAX)
        abort();
    fake.memory_bytes = fake_memory_of_device();
    numa_ids_from_environment();
    fake.init_result = (int)fake_setting("FAKECUDA_INIT", 0);
    fake.verbose = fake_setting("FAKECUDA_VERBOSE", 0) != 0;
    fake.seed = fake_setting("FAKECUDA_SEED", 0);
    fake.lazy_ns = 1000000 * fake_setting("FAKECUDA_LAZY", 0);
    fake_profile_choose(getenv("FAKECUDA_PROFILE"));
    if (getenv("FAKECUDA_WRONG") != NULL)
        (void)sscanf(getenv("FAKECUDA_WRONG"), "%63[^+]+%u", fake.wrong_kernel, &fake.wrong_bit);
    plan_from_environment();
    pthread_atfork(before_fork, after_fork, in_child);
    atexit(at_end);
}

/* ---- plans */

static struct fake_site *site_of(enum fake_call call, const void *address)
{
    const unsigned max = sizeof(fake.sites) / sizeof(fake.sites[0]);

    for (unsigned i = 0; i < fake.site_count; i++) {
        if (fake.sites[i].address == address && fake.sites[i].call == call)
            return &fake.sites[i];
    }
    if (fake.site_count == max)
        abort();
    fake.sites[fake.site_count] = (struct fake_site){ .address = address, .call = call };
    return &fake.sites[fake.site_count++];
}

/* The result that a plan wants for this call, or 0. */
static int planned(const char *name, const void *site)
{
    int result = 0;

    for (size_t i = 0; i < sizeof(fake.plans) / sizeof(fake.plans[0]); i++) {
        struct fake_plan *plan = &fake.plans[i];

        if (!plan->used || (plan->site != NULL && plan->site != site) ||
            (strcmp(plan->name, "*") != 0 && strcmp(plan->name, name) != 0))
            continue;
        if (plan->nth > 0) {
            plan->nth--;
            continue;
        }
        result = plan->result;
        plan->used = plan->forever;
    }
    fake.failed_calls |= result > 0;
    return result;
}

static bool is_undo(enum fake_call call)
{
    switch (call) {
    case FAKE_CALL_cuMemUnmap:
    case FAKE_CALL_cuMemRelease:
    case FAKE_CALL_cuMemAddressFree:
    case FAKE_CALL_cuMemFree_v2:
    case FAKE_CALL_cuMemFreeHost:
    case FAKE_CALL_cuMemHostUnregister:
    case FAKE_CALL_cuStreamDestroy_v2:
    case FAKE_CALL_cuEventDestroy_v2:
    case FAKE_CALL_cuModuleUnload:
    case FAKE_CALL_cuGraphDestroy:
    case FAKE_CALL_cuGraphExecDestroy:
    case FAKE_CALL_cuDevicePrimaryCtxRelease_v2: return true;
    default: return false;
    }
}

int fake_planned_later(const char *name)
{
    char later[80];

    snprintf(later, sizeof(later), "later:%s", name);
    return planned(later, NULL);
}

bool fake_is_fatal(int result)
{
    return result == MP_CU_ERROR_ECC_UNCORRECTABLE || (result >= 700 && result < 720);
}

/* Nothing moves until somebody ends the stall. */
static void hang(void)
{
    fake.stalled = true;
    while (fake.stalled) {
        pthread_mutex_unlock(&fake.lock);
        usleep(1000);
        pthread_mutex_lock(&fake.lock);
    }
}

/* Does the calling thread know that the device is lost? Then 1 + fake.found. */
static __thread uint64_t reported;

static void note_reported(int result)
{
    if (fake.lost != 0 && result == fake.lost)
        reported = 1 + fake.found;
}

/* Words for a result are no call of the device. */
static bool is_too_many(enum fake_call call)
{
    return fake.lost != 0 && reported == 1 + fake.found && call != FAKE_CALL_cuGetErrorName &&
           call != FAKE_CALL_cuGetErrorString;
}

bool fake_enter(enum fake_call call, const void *address, int *result_p)
{
    struct fake_site *site;

    pthread_mutex_lock(&fake.lock);
    fake_this_call = call;
    fake_configure();
    fake.calls_total++;
    fake.calls[call]++;
    fake.calls_too_many += is_too_many(call);
    site = site_of(call, address);
    site->calls++;
    *result_p = fake.failed_calls && is_undo(call) ? fake.undo_result : 0;
    if (*result_p == 0)
        *result_p = planned(names[call], address);
    if (*result_p == FAKECUDA_HANGS) {
        hang();
        *result_p = 0;
    }
    if (*result_p == 0)
        return true;
    site->failed++;
    if (fake_is_fatal(*result_p)) { /* from now on everything says so */
        fake.lost = *result_p;
        fake.lost_by_plan = true;
        fake_wake_all();
    }
    note_reported(*result_p);
    pthread_mutex_unlock(&fake.lock);
    return false;
}

int fake_leave(int result)
{
    const enum fake_call call = fake_this_call;

    note_reported(result);
    pthread_mutex_unlock(&fake.lock);
    fake_profile_call(call);
    return result;
}

void fake_violation(const char *format, ...)
{
    char text[sizeof(fake.violation)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (fake.verbose)
        fprintf(stderr, "fakecuda: %s\n", text);
    if (fake.violations++ == 0)
        memcpy(fake.violation, text, sizeof(text));
}
