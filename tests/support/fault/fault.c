/*
 * Which calls fail: plans, call sites, and the sweep over all of them. The calls themselves are
 * taken over in wrap.c and wrap_files.c.
 */
#include "tests/support/fault/wrap.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fault/wrap_int.h"

#define SITES_MAX 2048
#define DEPTH_MAX 4
#define CALLERS_MAX 24
#define EDGES_MAX 4096
#define SHORT_CALLS                                                                     \
    (FAULT_BIT(read) | FAULT_BIT(pread) | FAULT_BIT(io_uring_read) | FAULT_BIT(write) | \
     FAULT_BIT(fstatvfs))

/* A site that only failures lead to is reached again by the plan under which it was found. */
struct site {
    const void *address;
    enum fault_call call;
    bool failed;
    bool left_out; /* its failure would go a way that others went; see fault_sweep_new_ways() */
    bool reached_by_plan;
    struct fault_plan found_under;
    const void *callers[CALLERS_MAX]; /* its own address, then return addresses up to the sweep or
                                       * the thread's beginning; the rest is NULL */
};

static struct {
    pthread_mutex_t lock;
    bool active;
    struct fault_plan plan;
    uint64_t matched[DEPTH_MAX], hits; /* matched: of the plan, of its `also`, ... */
    struct site sites[SITES_MAX];
    uint32_t site_count;
    const void *known[SITES_MAX]; /* failed in an earlier sweep */
    uint32_t known_count;
    const void *edges[EDGES_MAX]; /* calls beneath which something failed, and that failed by it */
    uint32_t edge_count;
    const void *sweep; /* where the function that runs the body returns to */
    bool brief, one_way, new_ways, went_up;
} fault = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* So that a program without failures runs at full speed. Relaxed: set before threads start. */
static _Atomic bool active;

static int default_errno(enum fault_call call)
{
    static const int numbers[] = {
#define X(name, error_number) [FAULT_##name] = (error_number),
        FAULT_CALLS(X) FAULT_NAMED_CALLS(X)
#undef X
    };

    return numbers[call];
}

const char *fault_call_name(enum fault_call call)
{
    static const char *const names[] = {
#define X(name, error_number) #name,
        FAULT_CALLS(X) FAULT_NAMED_CALLS(X)
#undef X
    };

    return names[call];
}

/* Without the frames of this file and of the wrapper, which end at the call itself. */
static void note_callers(struct site *site)
{
    void *frames[CALLERS_MAX + 8];
    const int count = backtrace(frames, CALLERS_MAX + 8);
    int from = 0;

    while (from < count && frames[from] != site->address)
        from++;
    site->callers[0] = site->address; /* of a call that stands for another it is no frame */
    for (int i = from + 1; i < count && i - from < CALLERS_MAX && frames[i] != fault.sweep; i++)
        site->callers[i - from] = frames[i];
}

static struct site *note_site(enum fault_call call, const void *address)
{
    uint32_t i = 0;

    while (i < fault.site_count && fault.sites[i].address != address)
        i++;
    if (i == SITES_MAX) {
        fprintf(stderr, "more than %d call sites, raise SITES_MAX\n", SITES_MAX);
        _exit(1);
    }
    if (i == fault.site_count) {
        fault.sites[fault.site_count++] = (struct site){
            .address = address,
            .call = call,
            .reached_by_plan = fault.plan.mode != FAULT_COUNT,
            .found_under = fault.plan,
        };
        if (fault.one_way)
            note_callers(&fault.sites[i]);
    }
    return &fault.sites[i];
}

static bool plan_fails(const struct fault_plan *plan, unsigned depth, enum fault_call call,
                       const void *address)
{
    uint64_t n;

    if ((plan->calls >> call & 1) == 0 || (plan->site != NULL && plan->site != address))
        return false;
    n = fault.matched[depth]++;
    return (plan->mode == FAULT_ONCE && n == plan->skip) ||
           (plan->mode == FAULT_ALWAYS && n >= plan->skip &&
            (plan->every == 0 || (n - plan->skip) % plan->every == 0));
}

static int fails_locked(enum fault_call call, const void *address)
{
    struct site *site = note_site(call, address);
    const struct fault_plan *by = NULL;
    const struct fault_plan *plan = &fault.plan;

    for (unsigned depth = 0; plan != NULL && depth < DEPTH_MAX; depth++, plan = plan->also) {
        if (plan_fails(plan, depth, call, address) && by == NULL)
            by = plan;
    }
    if (by == NULL)
        return 0;
    fault.hits++;
    site->failed = true;
    if ((by->short_bytes != 0 && (SHORT_CALLS >> call & 1) != 0) ||
        (by->corrupt && call == FAULT_write))
        return -1;
    return by->error_number != 0 ? by->error_number : default_errno(call);
}

int fault_fails(enum fault_call call, const void *address)
{
    int result = 0;

    if (!atomic_load_explicit(&active, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&fault.lock);
    if (fault.active && (fault.plan.calls >> call & 1) != 0)
        result = fails_locked(call, address);
    pthread_mutex_unlock(&fault.lock);
    return result;
}

void fault_begin(const struct fault_plan *plan)
{
    pthread_mutex_lock(&fault.lock);
    fault.plan = *plan;
    memset(fault.matched, 0, sizeof(fault.matched));
    fault.hits = 0;
    fault.active = true;
    pthread_mutex_unlock(&fault.lock);
    atomic_store(&active, true);
}

void fault_nth(uint64_t calls, uint64_t n)
{
    fault_begin(&(struct fault_plan){ .mode = FAULT_ONCE, .calls = calls, .skip = n });
}

struct fault_plan fault_plan_now(void)
{
    struct fault_plan plan;

    pthread_mutex_lock(&fault.lock);
    plan = fault.plan;
    pthread_mutex_unlock(&fault.lock);
    return plan;
}

uint64_t fault_end(void)
{
    uint64_t hits;

    atomic_store(&active, false);
    pthread_mutex_lock(&fault.lock);
    fault.active = false;
    hits = fault.hits;
    pthread_mutex_unlock(&fault.lock);
    return hits;
}

uint64_t fault_matched(void)
{
    uint64_t matched;

    pthread_mutex_lock(&fault.lock);
    matched = fault.matched[0];
    pthread_mutex_unlock(&fault.lock);
    return matched;
}

static uint32_t count_sites(uint64_t calls, bool failed_only)
{
    uint32_t n = 0;

    pthread_mutex_lock(&fault.lock);
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        n += (calls >> site->call & 1) != 0 && (site->failed || site->left_out || !failed_only);
    }
    pthread_mutex_unlock(&fault.lock);
    return n;
}

void fault_sweep_briefly(bool brief)
{
    fault.brief = brief;
}

void fault_sweep_one_way(bool one_way)
{
    fault.one_way = one_way;
}

void fault_sweep_new_ways(bool new_ways)
{
    fault.new_ways = new_ways;
}

void fault_went_up(void)
{
    fault.went_up = true;
}

uint32_t fault_sites_seen(uint64_t calls)
{
    return count_sites(calls, false);
}

uint32_t fault_sites_failed(uint64_t calls)
{
    return count_sites(calls, true);
}

static void print_site(const struct site *site)
{
    void *address = (void *)site->address;

    fprintf(stderr, "  %s called before ", fault_call_name(site->call));
    fflush(stderr);
    backtrace_symbols_fd(&address, 1, STDERR_FILENO);
}

void fault_print_not_failed(uint64_t calls)
{
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        if ((calls >> site->call & 1) != 0 && !site->failed && !site->left_out)
            print_site(site);
    }
}

uint32_t fault_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;

    if (dir == NULL) {
        perror("/proc/self/fd");
        exit(1);
    }
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the descriptor of the directory */
}

void fault_write_failed(const char *path)
{
    FILE *out = fopen(path, "a");
    Dl_info here;

    if (out == NULL || dladdr((void *)fault_write_failed, &here) == 0) {
        perror(path);
        exit(1);
    }
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        if (site->failed)
            fprintf(out, "%s %tx\n", fault_call_name(site->call),
                    (const char *)site->address - (const char *)here.dli_fbase);
    }
    if (fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

__attribute__((noinline)) static void sweep_run(void (*body)(const struct fault_plan *plan,
                                                             void *ctx),
                                                void *ctx, const struct fault_plan *plan,
                                                const struct site *site)
{
    static const char *const names[FAULT_MODE_COUNT] = { "never", "once", "always" };
    const uint32_t fds = fault_open_fds(), threads = fault_live_threads();
    const uint64_t bytes = fault_mapped_bytes();

    fault.sweep = __builtin_return_address(0);
    body(plan, ctx);
    if (fault_open_fds() == fds && fault_live_threads() == threads && fault_mapped_bytes() == bytes)
        return;
    fprintf(stderr,
            "%u descriptors open, %u before; %u threads, %u before; %llu bytes mapped, %llu "
            "before; failing %s after %llu calls:\n",
            fault_open_fds(), fds, fault_live_threads(), threads,
            (unsigned long long)fault_mapped_bytes(), (unsigned long long)bytes, names[plan->mode],
            (unsigned long long)plan->skip);
    if (site != NULL)
        print_site(site);
    exit(1);
}

static bool is_known(const void *address)
{
    for (uint32_t i = 0; i < fault.known_count; i++) {
        if (fault.known[i] == address)
            return true;
    }
    return false;
}

static void remember_failed(void)
{
    for (uint32_t i = 0; i < fault.site_count; i++) {
        if (fault.sites[i].failed && fault.known_count < SITES_MAX &&
            !is_known(fault.sites[i].address))
            fault.known[fault.known_count++] = fault.sites[i].address;
    }
}

static bool is_edge(const void *address)
{
    for (uint32_t i = 0; i < fault.edge_count; i++) {
        if (fault.edges[i] == address)
            return true;
    }
    return false;
}

/* Each call on the way up has failed before, beneath this one or another. */
static bool way_is_known(const struct site *site)
{
    for (uint32_t i = 0; i < CALLERS_MAX && site->callers[i] != NULL; i++) {
        if (!is_edge(site->callers[i]))
            return false;
    }
    return site->callers[1] != NULL;
}

/* After a run in which this site failed: what did not go up was dealt with somewhere in between. */
static void remember_way(const struct site *site)
{
    for (uint32_t i = 0; fault.went_up && site->failed && i < CALLERS_MAX; i++) {
        if (site->callers[i] != NULL && fault.edge_count < EDGES_MAX && !is_edge(site->callers[i]))
            fault.edges[fault.edge_count++] = site->callers[i];
    }
}

/*
 * Which of two threads comes first decides whether a site behind another failure is reached at all.
 * Those that were seen once and not met again get more chances.
 */
static uint32_t try_again(uint64_t calls, void (*body)(const struct fault_plan *plan, void *ctx),
                          void *ctx)
{
    uint32_t runs = 0;

    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < fault.site_count; i++) {
            const struct site *site = &fault.sites[i];
            const struct fault_plan plan = {
                .mode = FAULT_ONCE,
                .calls = calls,
                .site = site->address,
                .also = site->reached_by_plan ? &site->found_under : NULL,
            };

            if ((calls >> site->call & 1) == 0 || site->failed || site->left_out)
                continue;
            sweep_run(body, ctx, &plan, site);
            runs++;
        }
    }
    return runs;
}

uint32_t fault_sweep(uint64_t calls, void (*body)(const struct fault_plan *plan, void *ctx),
                     void *ctx)
{
    static const struct fault_plan kinds[] = {
        { .mode = FAULT_ONCE },
        { .mode = FAULT_ALWAYS },
        { .mode = FAULT_ALWAYS, .skip = 2 },
    };
    const struct fault_plan count = { .mode = FAULT_COUNT, .calls = calls };
    uint32_t runs = 1;

    remember_failed();
    fault.site_count = 0;
    sweep_run(body, ctx, &count, NULL);
    /* Failures lead to new sites, which are appended while the loop runs. */
    for (uint32_t i = 0; i < fault.site_count; i++) {
        struct site *site = &fault.sites[i];

        if ((calls >> site->call & 1) == 0)
            continue;
        site->left_out = fault.new_ways && way_is_known(site);
        if (site->left_out)
            continue;
        fault.went_up = false;
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            struct fault_plan plan = kinds[k];

            if (fault.one_way ? k != i % 2 : fault.brief && k > 0 && is_known(site->address))
                continue;
            plan.calls = calls;
            plan.site = site->address;
            plan.also = site->reached_by_plan ? &site->found_under : NULL;
            sweep_run(body, ctx, &plan, site);
            runs++;
        }
        remember_way(site);
    }
    runs += try_again(calls, body, ctx);
    if (fault_sites_failed(calls) == fault_sites_seen(calls))
        return runs;
    fprintf(stderr, "these call sites were never made to fail:\n");
    fault_print_not_failed(calls);
    for (uint32_t i = 0; i < fault.site_count; i++) {
        if ((calls >> fault.sites[i].call & 1) != 0 && !fault.sites[i].failed &&
            !fault.sites[i].left_out && !fault.sites[i].reached_by_plan)
            exit(1);
    }
    fprintf(stderr, "they were seen only behind another failure, by a thread that was late\n");
    return runs;
}
