/*
 * Messages of processes: what they say, and for how long it is true. The sockets are
 * top_sockets.c's.
 */
#include "engine/top/top_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/format/json.h"

#define SILENT_NS UINT64_C(3000000000)
#define INTERVAL_NS UINT64_C(1000000000)
#define NAME "a message to moepager top"

enum mp_status mp_top_open(const struct mp_live_dirs *dirs, struct mp_clock *clock,
                           struct mp_top **top_p)
{
    struct mp_top *top = calloc(1, sizeof(*top));
    enum mp_status status;

    if (top == NULL)
        return mp_fail_no_memory("moepager top", sizeof(*top));
    top->clock = clock;
    status = mp_top_sockets_open(dirs, top);
    if (status != MP_OK) {
        free(top);
        return status;
    }
    *top_p = top;
    return MP_OK;
}

void mp_top_close(struct mp_top *top)
{
    if (top == NULL)
        return;
    mp_top_sockets_close(top);
    free(top);
}

/* ---- a message */

static enum mp_status read_text(const json_t *root, const char *key, char out[MP_TOP_TEXT_BYTES])
{
    const char *text;
    enum mp_status status = mp_json_string(root, key, NAME, &text);

    if (status == MP_OK)
        snprintf(out, MP_TOP_TEXT_BYTES, "%s", text);
    return status;
}

struct number {
    const char *key;
    uint64_t *to;
};

static enum mp_status read_numbers(const json_t *object, const struct number *numbers)
{
    enum mp_status status = MP_OK;

    for (; numbers->key != NULL && status == MP_OK; numbers++)
        status = mp_json_u64(object, numbers->key, NAME, 0, INT64_MAX, numbers->to);
    return status;
}

static enum mp_status read_sample(const json_t *root, struct mp_top_process *p)
{
    struct mp_top_sample *s = &p->last;
    const struct number counters[] = {
        { "hits", &s->hits },
        { "misses", &s->misses },
        { "load_bytes", &s->load_bytes },
        { "prefetch_bytes", &s->prefetch_bytes },
        { "exposed_wait_ns", &s->exposed_wait_ns },
        { "resident_bytes", &s->resident_bytes },
        { NULL, NULL },
    };
    json_t *object;
    enum mp_status status = mp_json_object(root, "counters", NAME, &object);

    if (status == MP_OK)
        status = read_numbers(object, counters);
    if (status == MP_OK)
        status = mp_json_u64(root, "now_ns", NAME, 0, INT64_MAX, &s->now_ns);
    p->has_tokens = json_object_get(root, "tokens") != NULL;
    if (status == MP_OK && p->has_tokens)
        status = mp_json_u64(root, "tokens", NAME, 0, INT64_MAX, &s->tokens);
    if (status == MP_OK && p->has_tokens)
        status = mp_json_u64(root, "generated", NAME, 0, INT64_MAX, &s->generated);
    return status;
}

static enum mp_status read_process(const json_t *root, struct mp_top_process *p)
{
    const struct number numbers[] = {
        { "age_ns", &p->age_ns },
        { "budget_bytes", &p->budget_bytes },
        { "expert_bytes", &p->expert_bytes },
        { "weights_bytes", &p->weights_bytes },
        { NULL, NULL },
    };
    uint64_t version, index;
    enum mp_status status =
        mp_json_u64(root, "moepager_top", NAME, MP_LIVE_VERSION, MP_LIVE_VERSION, &version);

    if (status == MP_OK)
        status = mp_json_u64(root, "index", NAME, 0, 255, &index);
    if (status == MP_OK)
        status = read_text(root, "program", p->program);
    if (status == MP_OK)
        status = read_text(root, "command", p->command);
    if (status == MP_OK)
        status = read_text(root, "model", p->model);
    if (status == MP_OK)
        status = read_numbers(root, numbers);
    if (status == MP_OK)
        status = read_sample(root, p);
    if (status == MP_OK)
        p->index = (uint32_t)index;
    return status;
}

static bool is_before(const struct mp_top_process *a, const struct mp_top_process *b)
{
    return a->pid < b->pid || (a->pid == b->pid && a->index < b->index);
}

/* The place of the process in the list, made if it has none; NULL: the list is full. */
static struct mp_top_process *place_of(struct mp_top *top, const struct mp_top_process *wanted)
{
    struct mp_top_process *at = top->processes;
    struct mp_top_process *const end = at + top->count;

    while (at < end && is_before(at, wanted))
        at++;
    if (at < end && !is_before(wanted, at))
        return at;
    if (top->count == MP_TOP_PROCESSES_MAX)
        return NULL;
    memmove(at + 1, at, (size_t)(end - at) * sizeof(*at));
    *at = *wanted;
    at->first = at->middle = at->last;
    top->count++;
    return at;
}

/* The older samples of `read`, which follows `before`. */
static void follow(const struct mp_top_process *before, struct mp_top_process *read)
{
    read->first = before->first;
    read->middle = before->middle;
    if (read->last.now_ns < before->last.now_ns || read->age_ns < before->age_ns) {
        read->first = read->middle = read->last; /* another process with the same number */
    } else if (read->last.now_ns - read->middle.now_ns >= INTERVAL_NS) {
        read->first = read->middle;
        read->middle = read->last;
    }
}

bool mp_top_take(struct mp_top *top, uint64_t pid, const char *message, size_t bytes)
{
    struct mp_top_process read = { .pid = pid, .heard_ns = mp_clock_now_ns(top->clock) };
    struct mp_top_process *place;
    json_t *root = NULL;
    enum mp_status status = mp_json_parse(message, bytes, NAME, &root);

    if (status == MP_OK)
        status = read_process(root, &read);
    json_decref(root);
    place = status == MP_OK ? place_of(top, &read) : NULL;
    if (place == NULL) {
        mp_error_clear();
        top->refused++;
        return false;
    }
    follow(place, &read);
    *place = read;
    return true;
}

void mp_top_forget(struct mp_top *top)
{
    const uint64_t now_ns = mp_clock_now_ns(top->clock);
    size_t kept = 0;

    for (size_t i = 0; i < top->count; i++) {
        if (now_ns - top->processes[i].heard_ns < SILENT_NS)
            top->processes[kept++] = top->processes[i];
    }
    top->count = kept;
}

/* ---- what follows from it */

const struct mp_top_process *mp_top_processes(const struct mp_top *top, size_t *count_p)
{
    *count_p = top->count;
    return top->processes;
}

uint64_t mp_top_refused(const struct mp_top *top)
{
    return top->refused;
}

/* A process may count anything: what became less is nothing. */
static double more(uint64_t last, uint64_t first)
{
    return last > first ? (double)(last - first) : 0;
}

static double share(double hits, double misses)
{
    return hits + misses > 0 ? hits / (hits + misses) : 1;
}

void mp_top_rates_of(const struct mp_top_process *process, struct mp_top_rates *rates_p)
{
    const struct mp_top_sample *a = &process->first, *b = &process->last;
    const double s = more(b->now_ns, a->now_ns) * 1e-9;
    const double hits = more(b->hits, a->hits), misses = more(b->misses, a->misses);
    const double read_bytes =
        more(b->load_bytes, a->load_bytes) + more(b->prefetch_bytes, a->prefetch_bytes);

    *rates_p = (struct mp_top_rates){
        .hit_rate =
            hits + misses > 0 ? share(hits, misses) : share((double)b->hits, (double)b->misses),
    };
    if (s <= 0)
        return;
    rates_p->tokens_per_s = more(b->tokens, a->tokens) / s;
    rates_p->read_bytes_per_s = read_bytes / s;
    rates_p->wait_share = more(b->exposed_wait_ns, a->exposed_wait_ns) * 1e-9 / s;
    rates_p->wait_share = rates_p->wait_share < 1 ? rates_p->wait_share : 1;
}

uint64_t mp_top_resident_bytes(uint64_t pid)
{
    unsigned long long all, resident;
    char path[64];
    FILE *in;
    bool read;

    snprintf(path, sizeof(path), "/proc/%llu/statm", (unsigned long long)pid);
    in = fopen(path, "re");
    if (in == NULL)
        return 0;
    read = fscanf(in, "%llu %llu", &all, &resident) == 2;
    fclose(in);
    return read ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
