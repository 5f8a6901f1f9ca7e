/*
 * What the preload library calls: the one table of libmoepager_interpose.so, and the lives of paged
 * models: files that are mapped, the last one that goes, fork(). Each model has a pager of its own;
 * which one a call is about is found by address or by file.
 */
#include "interpose/entry/entry_int.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/topo/memory_room.h"

/* A call may need some at once, and others take some meanwhile. */
#define MAPS_FEW 256

#define FILE_BYTES_MIN (1 << 20)
#define PART_DIGITS 5

struct mp_host mp_entry_host;
static struct mp_interpose_settings settings;

/* A place for a model. */
struct place {
    _Atomic(struct mp_paged *) paged;
    _Atomic uint32_t inside;   /* threads in a call that uses it */
    uint32_t coming;           /* with `life`: of its files, mappings that are being made */
    struct mp_paged_span span; /* of its mappings */
};

/* Making and ending models; outside of all others. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t span_lock = PTHREAD_MUTEX_INITIALIZER; /* of set_span(), inside of all */
static struct place places[MP_MODELS_MAX];
static _Thread_local uint32_t coming_to; /* the place of the mapping that the thread makes */
static _Atomic bool expected;            /* a program has opened one */
static _Atomic bool was_mapped;          /* and maps one, paged or not */
static _Atomic bool ended;               /* the program; reports are written */
static struct stat refused[64]; /* files that are not paged, so that they are looked at once */
static uint32_t refused_count;
static uint64_t warned[8]; /* models that a warning named; 0: free */
static uint64_t models;    /* made so far */
static pid_t process;      /* whose memory this is: a child of vfork() has another number */

struct mp_paged *mp_entry_begin(uint32_t place)
{
    struct mp_paged *paged;

    atomic_fetch_add(&places[place].inside, 1);
    paged = atomic_load(&places[place].paged);
    if (paged == NULL)
        atomic_fetch_sub(&places[place].inside, 1);
    return paged;
}

void mp_entry_end(const struct mp_paged *paged)
{
    atomic_fetch_sub(&places[paged->index].inside, 1);
}

struct mp_paged *mp_entry_begin_at(const void *at)
{
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged =
            mp_paged_span_touches(&places[p].span, at, 1) ? mp_entry_begin(p) : NULL;
        struct mp_paged_part part;

        if (paged == NULL)
            continue;
        if (mp_mappings_find_part(paged->mappings, at, 1, &part))
            return paged;
        mp_entry_end(paged);
    }
    return NULL;
}

/* The program's hooks look at all addresses between the first and the last of any model. */
static void set_span(void)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    pthread_mutex_lock(&span_lock);
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        const uintptr_t from = atomic_load(&places[p].span.begin);
        const uintptr_t to = atomic_load(&places[p].span.end);

        if (to == 0)
            continue;
        begin = from < begin ? from : begin;
        end = to > end ? to : end;
    }
    atomic_store_explicit(&mp_entry_host.span->begin, begin, memory_order_release);
    atomic_store_explicit(&mp_entry_host.span->end, end, memory_order_release);
    pthread_mutex_unlock(&span_lock);
}

/* The last mapping has gone: nobody reads the model any more, unless it has got another one, or is
 * about to. */
static void end_model(uint32_t place)
{
    struct mp_paged *paged;

    pthread_mutex_lock(&life);
    paged = atomic_load(&places[place].paged);
    if (paged != NULL && places[place].coming == 0 && mp_mappings_is_empty(paged->mappings)) {
        atomic_store(&places[place].paged, NULL);
        while (atomic_load(&places[place].inside) > 0)
            nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
        if (!atomic_load(&ended))
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

/* The same for all parts of a model (name-00001-of-00005.gguf). 0: not known. */
static uint64_t model_hash(int fd)
{
    char path[PATH_MAX];
    uint64_t hash = 0xcbf29ce484222325u;
    const char *of;

    if (!mp_paged_find_path(fd, path))
        return 0;
    of = strstr(path, "-of-");
    for (const char *at = path; *at != '\0'; at++) {
        if (of == NULL || at >= of || at + PART_DIGITS < of)
            hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    }
    return hash | 1;
}

/* With `life`: the last error, unless it was about another part of the same model. */
static void warn_once(int fd)
{
    const uint64_t hash = model_hash(fd);
    size_t i = 0;

    while (i < MP_ARRAY_LEN(warned) && warned[i] != 0 && warned[i] != hash)
        i++;
    if (i < MP_ARRAY_LEN(warned) && warned[i] == hash && hash != 0)
        return;
    if (i < MP_ARRAY_LEN(warned))
        warned[i] = hash;
    mp_log_warn("preload", "experts are not paged: %s", mp_error_last()->text);
}

/* With `life`: the model that the descriptor's file belongs to; MP_MODELS_MAX: none is paged. */
static uint32_t find_model(int fd)
{
    uint32_t p = 0;

    while (p < MP_MODELS_MAX && (atomic_load(&places[p].paged) == NULL ||
                                 mp_paged_file_of(atomic_load(&places[p].paged), fd) == UINT32_MAX))
        p++;
    return p;
}

/* With `life`: the same, and a model is made if there is none. */
static uint32_t model_of(int fd)
{
    uint32_t p = find_model(fd);
    struct mp_host host = mp_entry_host;
    struct mp_paged *paged;
    struct mp_paged_others others = { 0 };
    enum mp_status status;
    struct stat st;

    if (p < MP_MODELS_MAX || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        st.st_size < FILE_BYTES_MIN || is_refused(&st))
        return p;
    for (p = 0; p < MP_MODELS_MAX && atomic_load(&places[p].paged) != NULL;)
        p++;
    if (p == MP_MODELS_MAX)
        return p;
    for (uint32_t other = 0; other < MP_MODELS_MAX; other++)
        mp_paged_add_other(atomic_load(&places[other].paged), &others);
    others.index = p;
    host.span = &places[p].span;
    mp_error_clear();
    status = mp_paged_create(&host, &settings, &others, fd, &paged);
    if (status == MP_OK) {
        paged->number = ++models;
        atomic_store(&places[p].paged, paged);
        return p;
    }
    if (mp_error_last()->text[0] != '\0')
        warn_once(fd);
    mp_error_clear();
    refuse(&st);
    return MP_MODELS_MAX;
}

static bool wants(const struct mp_map_call *call)
{
    atomic_store(&was_mapped, true);
    pthread_mutex_lock(&life);
    coming_to = model_of(call->fd);
    if (coming_to < MP_MODELS_MAX)
        places[coming_to].coming++;
    pthread_mutex_unlock(&life);
    return coming_to < MP_MODELS_MAX;
}

static bool mapped(const struct mp_map_call *call, void *at)
{
    struct place *place = &places[coming_to];
    struct mp_mapping map = {
        .at = at,
        .bytes = call->bytes,
        .offset_bytes = (uint64_t)call->offset,
        .prot = call->prot,
        .flags = call->flags & (MAP_SHARED | MAP_PRIVATE),
    };
    struct mp_paged *paged;
    bool added = false;

    pthread_mutex_lock(&life);
    paged = atomic_load(&place->paged); /* ended by nobody meanwhile */
    place->coming--;
    if (at != MAP_FAILED) {
        map.file = mp_paged_file_of(paged, call->fd);
        added = map.file != UINT32_MAX && mp_mappings_add(paged->mappings, &map, call->fd);
    }
    if (added && (map.prot & PROT_WRITE) == 0)
        mp_paged_dense_add(paged->dense, map.file);
    set_span();
    pthread_mutex_unlock(&life);
    end_model(coming_to); /* if it was made for this mapping, which is not there */
    return added;
}

/* With `life`: would the file be paged if it were mapped? */
static bool would_be(int fd)
{
    struct mp_paged_others others = { 0 };

    for (uint32_t p = 0; p < MP_MODELS_MAX; p++)
        mp_paged_add_other(atomic_load(&places[p].paged), &others);
    return find_model(fd) < MP_MODELS_MAX ||
           mp_paged_would_be(&mp_entry_host, &settings, &others, fd);
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
        found = would_be(fd);
        pthread_mutex_unlock(&life);
    }
    closedir(dir);
    if (found)
        atomic_store(&expected, true);
    return found;
}

static void leave(const void *at, size_t bytes)
{
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged =
            mp_paged_span_touches(&places[p].span, at, bytes) ? mp_entry_begin(p) : NULL;
        bool last;

        if (paged == NULL)
            continue;
        last = mp_mappings_leave(paged->mappings, at, bytes);
        mp_entry_end(paged);
        set_span();
        if (last)
            end_model(p);
    }
}

static bool find_part(const void *at, size_t bytes, struct mp_paged_part *part_p)
{
    bool found = false;

    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged =
            mp_paged_span_touches(&places[p].span, at, bytes) ? mp_entry_begin(p) : NULL;
        struct mp_paged_part part;

        if (paged == NULL)
            continue;
        if (mp_mappings_find_part(paged->mappings, at, bytes, &part) &&
            (!found || part.begin < part_p->begin)) {
            *part_p = part;
            found = true;
        }
        mp_entry_end(paged);
    }
    return found;
}

/* ENOMEM has other reasons too, and then nothing of ours is in the way. Nobody knows: it is. */
static bool lacks_mappings(void)
{
    uint64_t maps, maps_max;

    return !mp_memory_maps_read("", &maps, &maps_max) || maps + MAPS_FEW >= maps_max;
}

static bool make_way(void)
{
    bool made = false;

    if (atomic_load(&mp_entry_host.span->end) == 0 || !lacks_mappings())
        return false;
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = mp_entry_begin(p);

        if (paged == NULL)
            continue;
        made |= mp_mappings_make_way(paged->mappings);
        mp_entry_end(paged);
    }
    return made;
}

bool mp_interposer_place(const void *at, char path[], size_t path_bytes, uint64_t *offset_p)
{
    struct mp_paged *paged = mp_entry_begin_at(at);
    bool found;
    uint32_t file;

    if (paged == NULL)
        return false;
    found = mp_mappings_locate(paged->mappings, at, &file, offset_p) &&
            (size_t)snprintf(path, path_bytes, "%s", mp_files_name(paged->experts.files, file)) <
                path_bytes;
    mp_entry_end(paged);
    return found;
}

static void before_fork(void)
{
    pthread_mutex_lock(&life);
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = atomic_load(&places[p].paged);

        if (paged == NULL)
            continue;
        pthread_mutex_lock(&paged->mutex);
        mp_mappings_fork_prepare(paged->mappings);
    }
    pthread_mutex_lock(&span_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&span_lock);
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = atomic_load(&places[p].paged);

        if (paged == NULL)
            continue;
        mp_mappings_fork_parent(paged->mappings);
        pthread_mutex_unlock(&paged->mutex);
    }
    pthread_mutex_unlock(&life);
}

/* The child has the program's mappings as files, and no pager. */
static void after_fork_in_child(void)
{
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = atomic_exchange(&places[p].paged, NULL);

        atomic_store(&places[p].inside, 0);
        places[p].coming = 0;
        atomic_store(&places[p].span.begin, 0);
        atomic_store(&places[p].span.end, 0);
        if (paged == NULL)
            continue;
        mp_mappings_fork_child(paged->mappings);
        pthread_mutex_unlock(&paged->mutex);
    }
    atomic_store(&mp_entry_host.span->begin, 0);
    atomic_store(&mp_entry_host.span->end, 0);
    process = getpid();
    pthread_mutex_unlock(&span_lock);
    pthread_mutex_unlock(&life);
}

static void ask_for_report(int number)
{
    (void)number;
    atomic_fetch_add(&mp_paged_report_asked, 1);
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
    mp_entry_host = *from;
    process = getpid();
    mp_interpose_settings_load(&settings);
    mp_paged_count_files(&settings);
    mp_paged_check_report(&settings);
    take_signal();
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
}

/* Of each model. Threads may go on computing: exec() may fail, and who ends the program may wait
 * for them. */
static void write_all(void)
{
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = atomic_load(&places[p].paged);

        if (paged == NULL)
            continue;
        mp_paged_report(paged);
        if (pthread_mutex_trylock(&paged->mutex) != 0)
            continue;
        mp_paged_record_end(paged);
        pthread_mutex_unlock(&paged->mutex);
    }
}

static void replaced(void)
{
    if (getpid() == process)
        write_all();
}

/* The program ends: report what is there, and leave the rest to the kernel. */
__attribute__((destructor)) static void end(void)
{
    if (atomic_load(&expected) && !atomic_load(&was_mapped))
        mp_log_warn("preload", "no experts were paged: the model was read, not mapped; leave out "
                               "--no-mmap and --load-mode");
    write_all();
    atomic_store(&ended, true);
}

const struct mp_interposer mp_interposer_table = {
    .abi = MP_INTERPOSE_ABI,
    .start = start,
    .expects = expects,
    .wants = wants,
    .mapped = mapped,
    .leave = leave,
    .find_part = find_part,
    .refused = make_way,
    .expert = mp_call_expert,
    .ids_read = mp_call_ids_read,
    .copy = mp_call_copy,
    .synchronized = mp_call_synchronized,
    .whole = mp_call_whole,
    .wants_chosen = mp_call_wants_chosen,
    .is_chosen = mp_call_is_chosen,
    .chosen = mp_call_chosen,
    .routed = mp_call_routed,
    .replaced = replaced,
};
