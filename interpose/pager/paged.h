#ifndef MP_INTERPOSE_PAGED_H
#define MP_INTERPOSE_PAGED_H

#include <limits.h>
#include <pthread.h>

#include "interpose/model/experts.h"
#include "interpose/pager/settings.h"
#include "interpose/mapping/mappings.h"
#include "policy/pager/pager.h"

/*
 * A paged model: the experts of the files that a program maps, the pager for them, and the
 * synchronisation of the program's reads.
 *
 * No thread owns the pager permanently; `mutex` serialises its users. A thread of the
 * program that learns which experts a layer will read locks it, opens the layer and continues. A
 * thread that is about to read an absent expert locks it, waits for reads and maps arrived experts
 * until its own has arrived. So a layer whose experts are resident needs no thread switch.
 *
 *     paged.c    creation: budget, space, policies
 *     routing.c  layers: needs and waiting threads
 *     ahead.c    prefetches
 *     scores.c   what the next layer's router would say
 *     stream.c   experts that do not fit into the budget
 *     watch.c    accesses that were not announced
 *     dense.c    weights other than experts
 *     report.c   the report; record.c trace and timeline; names.c the names of their files
 *
 * Thread safety: any thread, unless a comment requires that the caller holds `mutex`. Lock
 * order: `mutex`, then the locks of vmm and of the mappings.
 */
struct mp_paged_ahead;
struct mp_paged_dense;
struct mp_paged_record;
struct mp_paged_scores;
struct mp_paged_watch;

/* How the pager learns what is about to be read. */
enum mp_paged_source {
    MP_SOURCE_TOUCHES,   /* from page accesses */
    MP_SOURCE_CHOSEN,    /* the scheduler's callback, after a router */
    MP_SOURCE_EXPERT,    /* ggml reports each expert */
    MP_SOURCE_ANNOUNCED, /* the program announces it */
};

/* State of a unit: bits of the pieces that a thread may read without a call. In place: all of them,
 * from the file's mapping, because the unit does not fit. */
enum {
    MP_READY_NO = 0,
    MP_READY_YES = (1 << MP_UNIT_PIECES_MAX) - 1,
    MP_READY_IN_PLACE = MP_READY_YES | 1 << MP_UNIT_PIECES_MAX
};

/* Copies to a device that the program makes from slots; see uploads.h. With `mutex` held. */
struct mp_uploads {
    bool tried; /* pinning the slots was tried */
    char *base; /* address of the slots; the first pinned_bytes are pinned */
    uint64_t pinned_bytes;
    void *unpin;
    void *backend;   /* backend with copies from the open layer's slots in flight; NULL: none */
    pthread_t owner; /* the thread that queued them */
    void *synchronize;
    uint64_t copies;
};

struct mp_paged {
    struct mp_interpose_settings settings;
    struct mp_host host;
    char path[PATH_MAX]; /* of the first file that was mapped */
    uint64_t number;     /* number of the model in the process, from 1 */
    uint32_t index;      /* in the table of models */
    uint64_t started_ns;

    struct mp_experts experts;
    struct mp_mappings *mappings;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_space_plan plan;
    uint64_t budget_bytes;
    bool dense_fits; /* there is memory for copies of the dense weights beside the budget */
    struct mp_profile profile;
    struct mp_policies policies;
    struct mp_shape shape;
    struct mp_counters counters;
    struct mp_pager *pager;
    struct mp_costs costs; /* of the program's work, for policies */
    struct mp_paged_ahead *ahead;
    struct mp_paged_scores *scores; /* or NULL */
    struct mp_paged_dense *dense;
    struct mp_paged_watch *watch;
    struct mp_paged_record *record;
    struct mp_timeline *timeline;        /* or NULL */
    int pagemap_fd;                      /* -1: not used */
    _Atomic enum mp_paged_source source; /* may become ANNOUNCED once */

    /* Serialises calls of the pager. It is held while waiting for reads, so it is not one of
     * vmm/base/lock.h. */
    pthread_mutex_t mutex;

    void *tables; /* the block of the arrays below */

    /* (units): MP_READY_* */
    _Atomic uint8_t *ready;
    _Atomic uint64_t open_key; /* key of the open layer's routing; 0: no layer is open */
    _Atomic bool reading;      /* needs of the open layer are still to come */
    _Atomic bool off;          /* permanently: only the file's mapping is used */

    /* With `mutex` held. */
    bool open;
    uint32_t layer;
    struct mp_need *needs; // (experts)
    uint32_t need_count;
    uint8_t *leased;     // (experts), by need: 1 if leased
    uint8_t *unreadable; // (units): cannot be read by the pager, so the file's mapping is used
    uint8_t *resident;   // (experts): scratch
    uint32_t *counts;    // (experts): scratch
    const void *(*slots)[MP_UNIT_PIECES_MAX]; // (experts), by need: pieces of leased ones
    struct mp_uploads uploads;
    uint32_t tokens, top_k;
    uint32_t *chosen; // (tokens_max * k): routing of the open layer, if it has few tokens

    const char *why; /* the pager has to stop; NULL: it does not */

    /* For the report. */
    uint64_t layers_opened, layers_aborted, failures;
    _Atomic uint64_t full_routings; /* routings to all experts */
    _Atomic uint64_t touches;       /* of experts that were not announced */
};

#define MP_PAGED_TOKENS_MAX 64u

/* Other models of the process: the sum of their budgets, how much of it is still to be filled, the
 * mappings that this may take, and the index of the new one. */
struct mp_paged_others {
    uint64_t budget_bytes, empty_bytes, maps;
    uint32_t index;
};

/* Add one. NULL is none. */
void mp_paged_add_other(const struct mp_paged *paged, struct mp_paged_others *others);

/*
 * Create the paged model for a file that the program has open. MP_ERR_UNSUPPORTED, without a text:
 * nothing in it needs paging. On failure nothing is left.
 */
enum mp_status mp_paged_create(const struct mp_host *host,
                               const struct mp_interpose_settings *settings,
                               const struct mp_paged_others *others, int fd,
                               struct mp_paged **paged_p) MP_MUST_CHECK;

/* True if mp_paged_create() would succeed. Creates and logs nothing. */
bool mp_paged_would_be(const struct mp_host *host, const struct mp_interpose_settings *settings,
                       const struct mp_paged_others *others, int fd);

/* No thread may be in a call. NULL is allowed. */
void mp_paged_destroy(struct mp_paged *paged);

/* The name that the descriptor was opened by. False: it has none. */
bool mp_paged_find_path(int fd, char path[PATH_MAX]);

/* True if the file begins like a GGUF file. */
bool mp_paged_is_gguf(int fd);

/* Index of the model's file that this descriptor has open; UINT32_MAX: none. */
uint32_t mp_paged_file_of(const struct mp_paged *paged, int fd);

/* routing.c. The choice of a router: ids(tokens, k). */
struct mp_routing {
    uint32_t layer;
    uint64_t key; /* identifies the routing; not 0 */
    uint32_t tokens, k;
    const char *ids; /* int32_t, with these strides */
    uint64_t token_stride, rank_stride;
    const char *input; /* (tokens, hidden) float: what the layer's experts compute with, or NULL */
    uint64_t input_stride;
};

/* The key, a hash of layer, ids and shape; never 0. */
uint64_t mp_paged_key(const struct mp_routing *routing);

/* Open the layer for this routing, unless it is open. */
void mp_paged_route(struct mp_paged *paged, const struct mp_routing *routing);

/* Return when this piece of the unit can be read, or when waiting is pointless because it cannot be
 * loaded. */
void mp_paged_wait(struct mp_paged *paged, uint32_t unit, uint32_t piece, uint64_t key);

/* Open the layer for announced experts and return when they can be read. Ids may repeat; those out
 * of range are skipped. */
void mp_paged_announce(struct mp_paged *paged, uint32_t layer, const int64_t *ids, size_t count);

/* Return when all needs of the open layer can be read. */
void mp_paged_wait_all(struct mp_paged *paged, uint64_t key);

/* Stop paging permanently; logs one line with the reason. */
void mp_paged_stop(struct mp_paged *paged, const char *why);

/* Close the open layer. With `mutex` held. */
void mp_paged_close_layer(struct mp_paged *paged);

/* Process accesses to units of a layer that were not announced, counted in `counts`: reads those
 * that should become resident and waits for them. */
void mp_paged_note_touches(struct mp_paged *paged, uint32_t layer, const uint32_t *counts);

/*
 * stream.c. A thread is about to read an expert that will not become resident, because its layer
 * needs more experts than fit: advises the kernel to read the next ones of that tensor and to drop
 * those already read. Experts of a tensor come in ascending order.
 */
void mp_paged_stream(struct mp_paged *paged, const struct mp_expert_tensor *tensor,
                     uint32_t expert);

/* watch.c: a thread that periodically checks whether files have changed and, if no hook reports
 * reads, which pages were accessed. */
struct mp_paged_watch *mp_paged_watch_create(struct mp_paged *paged);
void mp_paged_watch_destroy(struct mp_paged_watch *watch);

/* True if the unit was accessed since the last call. Only with source MP_SOURCE_TOUCHES. */
bool mp_paged_was_touched(struct mp_paged *paged, uint32_t unit);

/* ahead.c. A failure to create it only costs time. */
struct mp_paged_ahead *mp_paged_ahead_create(const struct mp_paged *paged);
void mp_paged_ahead_destroy(struct mp_paged_ahead *ahead);

/* Predict the layers after the one that is open for `routing` and prefetch. With `mutex` held. */
void mp_paged_prefetch(struct mp_paged *paged, const struct mp_routing *routing);

/* Of what was guessed last of each layer, that is as many experts as a token has: how many there
 * were when the layer ran, and how many of them it used. */
void mp_paged_ahead_counts(const struct mp_paged_ahead *ahead, uint64_t *guessed_p,
                           uint64_t *right_p);

/* dense.c: a thread that reads the dense weights of mapped files, if there is memory for them. */
struct mp_paged_dense *mp_paged_dense_create(struct mp_paged *paged);
void mp_paged_dense_add(struct mp_paged_dense *dense, uint32_t file);
void mp_paged_dense_destroy(struct mp_paged_dense *dense);
uint64_t mp_paged_dense_bytes(const struct mp_experts *experts);
bool mp_paged_dense_done(struct mp_paged_dense *dense, uint64_t *bytes_p);

/* report.c: write the report where the settings specify. check: warn, before anything is paged, if
 * that is a file that cannot be written. */
void mp_paged_report(struct mp_paged *paged);
void mp_paged_check_report(struct mp_interpose_settings *settings);
/* Send to `moepager top`, if somebody watches, what the pager does. */
void mp_paged_tell_top(struct mp_paged *paged);

/* Incremented by a signal handler; the thread of watch.c then writes the report. */
extern _Atomic uint32_t mp_paged_report_asked;

/* names.c: "report-%p.json" with the process's number; "report-%p.2.json" for the second of several
 * models of the process. count: what earlier programs of the process have written stays. */
void mp_paged_expand(const struct mp_paged *paged, const char *name, char out[PATH_MAX]);
void mp_paged_count_files(struct mp_interpose_settings *settings);

/* record.c: trace and timeline, if the settings enable them. route: with `mutex` held. end: write
 * them; after the last route. */
void mp_paged_timeline_create(struct mp_paged *paged);
struct mp_paged_record *mp_paged_record_create(struct mp_paged *paged);
void mp_paged_record_route(struct mp_paged *paged, const struct mp_routing *routing);
void mp_paged_record_end(struct mp_paged *paged);

#endif
