/*
 * What the preload library calls: the one table of libmoepager_interpose.so. There is one paged
 * model at a time; what a program maps besides is left alone.
 */
#include "interpose/entry.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "interpose/ggml.h"
#include "interpose/seam.h"
#include "vmm/base/error.h"

#define FILE_BYTES_MIN (1 << 20)

static struct mp_host host;
static struct mp_interpose_settings settings;

/* Making and ending a model; outside of all others. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct mp_paged *) model;
static _Atomic bool expected;   /* a program has opened one */
static _Atomic bool was_mapped; /* and maps one, paged or not */
static _Atomic uint32_t inside; /* threads in a call that uses it */
static struct stat refused[64]; /* files that are not paged, so that they are looked at once */
static uint32_t refused_count;
static uint64_t models; /* made so far */

/* The model for the time of a call; NULL: there is none. */
static struct mp_paged *enter(void)
{
    struct mp_paged *paged;

    atomic_fetch_add(&inside, 1);
    paged = atomic_load(&model);
    if (paged == NULL)
        atomic_fetch_sub(&inside, 1);
    return paged;
}

static void leave_call(void)
{
    atomic_fetch_sub(&inside, 1);
}

/* The last mapping has gone: nobody reads the model any more. */
static void end_model(void)
{
    struct mp_paged *paged;

    pthread_mutex_lock(&life);
    paged = atomic_exchange(&model, NULL);
    while (atomic_load(&inside) > 0)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    if (paged != NULL) {
        mp_paged_report(paged);
        mp_paged_destroy(paged);
    }
    pthread_mutex_unlock(&life);
}

static bool is_refused(const struct stat *st)
{
    for (uint32_t i = 0; i < refused_count && i < MP_ARRAY_LEN(refused); i++) {
        if (refused[i].st_dev == st->st_dev && refused[i].st_ino == st->st_ino &&
            refused[i].st_mtim.tv_sec == st->st_mtim.tv_sec &&
            refused[i].st_mtim.tv_nsec == st->st_mtim.tv_nsec)
            return true;
    }
    return false;
}

static void refuse(const struct stat *st)
{
    refused[refused_count++ % MP_ARRAY_LEN(refused)] = *st;
}

/* With `life`: the model that the descriptor's file belongs to, made now if there is none. */
static struct mp_paged *model_of(int fd)
{
    struct mp_paged *paged = atomic_load(&model);
    enum mp_status status;
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < FILE_BYTES_MIN)
        return NULL;
    if (paged != NULL)
        return mp_paged_file_of(paged, fd) != UINT32_MAX ? paged : NULL;
    if (is_refused(&st))
        return NULL;
    mp_error_clear();
    status = mp_paged_create(&host, &settings, fd, &paged);
    if (status == MP_OK) {
        paged->number = ++models;
        atomic_store(&model, paged);
        return paged;
    }
    if (mp_error_last()->text[0] != '\0')
        mp_log_warn("preload", "experts are not paged: %s", mp_error_last()->text);
    mp_error_clear();
    refuse(&st);
    return NULL;
}

static bool wants(const struct mp_map_call *call)
{
    bool wanted;

    atomic_store(&was_mapped, true);
    pthread_mutex_lock(&life);
    wanted = model_of(call->fd) != NULL;
    pthread_mutex_unlock(&life);
    return wanted;
}

static bool mapped(const struct mp_map_call *call, void *at)
{
    struct mp_paged *paged;
    struct mp_view view = {
        .at = at,
        .bytes = call->bytes,
        .offset_bytes = (uint64_t)call->offset,
        .prot = call->prot,
        .flags = call->flags & (MAP_SHARED | MAP_PRIVATE),
    };
    bool added = false, empty = false;

    pthread_mutex_lock(&life);
    paged = atomic_load(&model);
    if (paged != NULL && at != MAP_FAILED) {
        view.file = mp_paged_file_of(paged, call->fd);
        added = view.file != UINT32_MAX && mp_shown_add(paged->shown, &view);
    }
    if (added && (view.prot & PROT_WRITE) == 0)
        mp_paged_dense_add(paged->dense, view.file);
    if (paged != NULL)
        empty = mp_shown_is_empty(paged->shown);
    pthread_mutex_unlock(&life);
    if (empty)
        end_model(); /* it was made for this mapping */
    return added;
}

/* Files that the program has open now. */
static bool expects(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    bool found = false;

    if (dir == NULL)
        return false;
    while (!found && (entry = readdir(dir)) != NULL) {
        const int fd = (int)strtol(entry->d_name, NULL, 10);

        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || fd == dirfd(dir) ||
            !mp_paged_is_gguf(fd))
            continue;
        pthread_mutex_lock(&life);
        found = atomic_load(&model) != NULL ? model_of(fd) != NULL
                                            : mp_paged_would_be(&host, &settings, fd);
        pthread_mutex_unlock(&life);
    }
    closedir(dir);
    if (found)
        atomic_store(&expected, true);
    return found;
}

static void leave(const void *at, size_t bytes)
{
    struct mp_paged *paged = enter();
    bool last;

    if (paged == NULL)
        return;
    last = mp_shown_leave(paged->shown, at, bytes);
    leave_call();
    if (last)
        end_model();
}

static bool covers(const void *at, size_t bytes)
{
    struct mp_paged *paged = enter();
    bool covered;

    if (paged == NULL)
        return false;
    covered = mp_shown_covers(paged->shown, at, bytes);
    leave_call();
    return covered;
}

/* What a thread has found out about the operation that it is at. */
struct at_work {
    uint64_t model; /* number of the model that it was about */
    const void *dst;
    int64_t expert;
    uint64_t key;
    const struct mp_expert_tensor *tensor;
    bool paged;
};

static _Thread_local struct at_work work;

static bool knows_layout(const void *site)
{
    static _Atomic int known; /* 0: not yet; 1: yes; 2: no */
    int now = atomic_load_explicit(&known, memory_order_acquire);

    if (now == 0) {
        now = mp_ggml_check(host.find, site) ? 1 : 2;
        if (now == 2)
            mp_log_once(MP_LOG_WARN, "preload",
                        "this version of ggml is not known: experts are paged by what is touched");
        atomic_store_explicit(&known, now, memory_order_release);
    }
    return now == 1;
}

/* What `ids` says, and its key. 0: it says nothing of what will be needed. */
static uint64_t read_routing(struct mp_paged *paged, uint32_t layer,
                             const struct mp_ggml_tensor *ids, struct mp_routing *routing)
{
    if (ids == NULL || ids->data == NULL || ids->ne[0] <= 0 || ids->ne[1] <= 0 ||
        ids->ne[0] > paged->experts.experts || ids->ne[1] > UINT32_MAX)
        return 0;
    /* All experts for every token is a warm-up. */
    if (ids->ne[0] == paged->experts.experts && paged->experts.top_k < paged->experts.experts) {
        atomic_fetch_add_explicit(&paged->wholes, 1, memory_order_relaxed);
        return 0;
    }
    *routing = (struct mp_routing){
        .layer = layer,
        .tokens = (uint32_t)ids->ne[1],
        .k = (uint32_t)ids->ne[0],
        .ids = ids->data,
        .token_stride = ids->nb[1],
        .rank_stride = ids->nb[0],
    };
    routing->key = mp_paged_key(routing);
    return routing->key;
}

/* A thread begins with an operation: is it about our experts, and what do they have to be? */
static void begin_work(struct mp_paged *paged, const struct mp_ggml_tensor *dst)
{
    const struct mp_ggml_tensor *weights = dst->src[0];
    struct mp_routing routing;
    uint64_t offset;
    uint32_t file;

    work.model = paged->number;
    work.dst = dst;
    work.tensor = NULL;
    work.paged = false;
    if (weights != NULL && weights->ne[2] == paged->experts.experts &&
        mp_shown_place(paged->shown, weights->data, &file, &offset))
        work.tensor = mp_experts_find(&paged->experts, file, offset);
    if (work.tensor == NULL)
        return;
    work.key = read_routing(paged, work.tensor->layer, dst->src[2], &routing);
    work.paged = work.key != 0;
    if (!work.paged)
        return;
    mp_paged_route(paged, &routing);
}

static void wait_for(struct mp_paged *paged, uint32_t number)
{
    const uint32_t unit = work.tensor->layer * paged->experts.experts + number;

    mp_paged_wait(paged, unit, work.key);
    if (atomic_load_explicit(&paged->ready[unit], memory_order_acquire) == MP_READY_IN_PLACE)
        mp_paged_stream(paged, work.tensor, number);
}

static void expert(const void *site, const void *dst, int64_t number, int64_t rows)
{
    struct mp_paged *paged = enter();

    (void)rows;
    if (paged == NULL)
        return;
    if (paged->source == MP_SOURCE_EXPERT &&
        !atomic_load_explicit(&paged->off, memory_order_relaxed) && knows_layout(site)) {
        if (dst != work.dst || number <= work.expert || paged->number != work.model)
            begin_work(paged, dst);
        work.expert = number;
        if (work.paged && number >= 0 && number < paged->experts.experts)
            wait_for(paged, (uint32_t)number);
    }
    leave_call();
}

static _Atomic(const void *) chosen_site; /* of the scheduler's callback */

/* On a device the address of a tensor is none of ours. */
static bool is_on_host(const struct mp_ggml_tensor *tensor)
{
    bool (*is_host)(void *) =
        (bool (*)(void *))host.find(atomic_load(&chosen_site), "ggml_backend_buffer_is_host");

    return tensor->buffer == NULL || is_host == NULL || is_host(tensor->buffer);
}

static bool wants_chosen(const void *site)
{
    struct mp_paged *paged = enter();
    bool wanted;

    if (paged == NULL)
        return false;
    atomic_store(&chosen_site, site);
    wanted = paged->source == MP_SOURCE_CHOSEN && !atomic_load(&paged->off) && knows_layout(site);
    leave_call();
    return wanted;
}

/* "ffn_moe_topk-12": the choice of block 12. */
static bool find_layer(const struct mp_paged *paged, const char *name, uint32_t *layer_p)
{
    static const char prefix[] = "ffn_moe_topk-";
    uint32_t block = 0;

    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0)
        return false;
    for (name += sizeof(prefix) - 1; *name >= '0' && *name <= '9' && block < MP_BLOCKS_MAX; name++)
        block = block * 10 + (uint32_t)(*name - '0');
    if (*name != '\0' || block >= MP_BLOCKS_MAX)
        return false;
    *layer_p = paged->experts.layer_of[block];
    return *layer_p != UINT32_MAX;
}

static bool is_chosen(const void *tensor)
{
    const struct mp_ggml_tensor *chosen = tensor;
    struct mp_paged *paged = enter();
    uint32_t layer;
    bool is;

    if (paged == NULL)
        return false;
    is = !atomic_load(&paged->off) && find_layer(paged, chosen->name, &layer);
    leave_call();
    return is;
}

static void chosen(const void *tensor)
{
    const struct mp_ggml_tensor *ids = tensor;
    struct mp_paged *paged = enter();
    struct mp_routing routing;
    uint64_t key = 0;
    uint32_t layer;

    if (paged == NULL)
        return;
    if (find_layer(paged, ids->name, &layer) && is_on_host(ids))
        key = read_routing(paged, layer, ids, &routing);
    if (key != 0) {
        mp_paged_route(paged, &routing);
        mp_paged_wait_all(paged, key);
    }
    leave_call();
}

static bool routed(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count)
{
    struct mp_paged *paged = enter();
    const struct mp_expert_tensor *tensor = NULL;
    uint64_t offset;
    uint32_t file;
    bool right;

    if (paged == NULL)
        return false;
    if (!atomic_load(&paged->off) && mp_shown_place(paged->shown, weights, &file, &offset))
        tensor = mp_experts_find(&paged->experts, file, offset);
    right =
        tensor != NULL && tensor->offset_bytes == offset && tensor->expert_bytes == expert_bytes;
    if (right)
        mp_paged_announce(paged, tensor->layer, ids, count);
    leave_call();
    return right;
}

/* ---- copies that the program makes to a device */

static void ids_read(const void *site, const void *tensor, const void *data, size_t bytes)
{
    struct mp_paged *paged = enter();

    if (paged == NULL)
        return;
    if (knows_layout(site))
        mp_seam_ids(tensor, data, bytes);
    leave_call();
}

static bool copy(const void *site, const struct mp_seam_copy *wanted)
{
    struct mp_paged *paged = enter();
    bool done;

    if (paged == NULL)
        return false;
    done = !atomic_load(&paged->off);
    if (done)
        mp_seam_copy(paged, site, wanted);
    leave_call();
    return done;
}

static void synchronized(const void *backend, bool ends)
{
    struct mp_paged *paged = enter();

    if (paged == NULL)
        return;
    if (ends)
        mp_seam_backend_ends(paged, backend);
    else
        mp_seam_synchronized(paged, backend);
    leave_call();
}

static void whole(const void *site, const void *tensor)
{
    const struct mp_ggml_tensor *weights = tensor;
    struct mp_paged *paged = enter();

    if (paged == NULL)
        return;
    if (knows_layout(site) && weights->data != NULL && weights->nb[3] > 0)
        mp_seam_whole(paged, weights->data, weights->nb[3]);
    leave_call();
}

bool mp_interposer_place(const void *at, char path[], size_t path_bytes, uint64_t *offset_p)
{
    struct mp_paged *paged = enter();
    bool found;
    uint32_t file;

    if (paged == NULL)
        return false;
    found = mp_shown_place(paged->shown, at, &file, offset_p) &&
            (size_t)snprintf(path, path_bytes, "%s", mp_files_name(paged->experts.files, file)) <
                path_bytes;
    leave_call();
    return found;
}

static void before_fork(void)
{
    struct mp_paged *paged;

    pthread_mutex_lock(&life);
    paged = atomic_load(&model);
    if (paged != NULL) {
        pthread_mutex_lock(&paged->turn);
        mp_shown_fork_prepare(paged->shown);
    }
}

static void after_fork_in_parent(void)
{
    struct mp_paged *paged = atomic_load(&model);

    if (paged != NULL) {
        mp_shown_fork_parent(paged->shown);
        pthread_mutex_unlock(&paged->turn);
    }
    pthread_mutex_unlock(&life);
}

/* The child has the program's mappings as files, and no pager. */
static void after_fork_in_child(void)
{
    struct mp_paged *paged = atomic_exchange(&model, NULL);

    if (paged != NULL) {
        mp_shown_fork_child(paged->shown);
        pthread_mutex_unlock(&paged->turn);
    }
    atomic_store(&host.span->begin, 0);
    atomic_store(&host.span->end, 0);
    atomic_store(&inside, 0);
    pthread_mutex_unlock(&life);
}

static void ask_for_report(int number)
{
    (void)number;
    atomic_store(&mp_paged_report_asked, true);
}

/* SIGUSR1 writes the report while the program runs, where the program leaves that signal alone. */
static void take_signal(void)
{
    const struct sigaction ours = { .sa_handler = ask_for_report, .sa_flags = SA_RESTART };
    struct sigaction now;

    if (settings.files.report[0] != '\0' && sigaction(SIGUSR1, NULL, &now) == 0 &&
        (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL)
        (void)sigaction(SIGUSR1, &ours, NULL);
}

static bool start(const struct mp_host *from)
{
    host = *from;
    mp_interpose_settings_load(&settings);
    take_signal();
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
}

/* The program ends: report what is there, and leave the rest to the kernel. */
__attribute__((destructor)) static void end(void)
{
    struct mp_paged *paged = atomic_load(&model);

    if (atomic_load(&expected) && !atomic_load(&was_mapped))
        mp_log_warn("preload", "no experts were paged: the model was read, not mapped; leave out "
                               "--no-mmap and --load-mode");
    if (paged == NULL)
        return;
    mp_paged_report(paged);
    if (pthread_mutex_trylock(&paged->turn) == 0)
        mp_paged_record_end(paged); /* and nobody gets a turn any more */
}

const struct mp_interposer mp_interposer_table = {
    .abi = MP_INTERPOSE_ABI,
    .start = start,
    .expects = expects,
    .wants = wants,
    .mapped = mapped,
    .leave = leave,
    .covers = covers,
    .expert = expert,
    .ids_read = ids_read,
    .copy = copy,
    .synchronized = synchronized,
    .whole = whole,
    .wants_chosen = wants_chosen,
    .is_chosen = is_chosen,
    .chosen = chosen,
    .routed = routed,
};
