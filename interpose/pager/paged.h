#ifndef MP_INTERPOSE_PAGED_H
#define MP_INTERPOSE_PAGED_H

#include <limits.h>
#include <pthread.h>

#include "interpose/model/experts.h"
#include "interpose/pager/settings.h"
#include "interpose/window/shown.h"
#include "policy/pager/pager.h"

/*
 * A model whose files a program maps: its experts, the pager over them, and who may read what when.
 *
 * Nobody owns the pager for long. A thread of the program that learns what a layer is going to read
 * takes its turn, opens the layer, and goes on; a thread that is about to read an expert that is
 * not there yet takes its turn, waits for reads and shows what has come until its expert has. So a
 * layer whose experts are resident costs no switch of threads.
 *
 *     paged.c    its life: budget, space, policies
 *     routing.c  layers: what is needed, who waits
 *     ahead.c    what is read before it is needed
 *     scores.c   what the next layer's router would say
 *     stream.c   experts that there is no room for
 *     watch.c    what nobody foresaw
 *     dense.c    what is not an expert
 *     report.c   what was done; record.c what was routed, and when
 *
 * Thread safety: everything that takes `turn` by itself may be called by any thread; the rest says
 * that its caller has it. Order of locks: turn, then what vmm and shown.h have.
 */
struct mp_paged_ahead;
struct mp_paged_dense;
struct mp_paged_record;
struct mp_paged_scores;
struct mp_paged_watch;

/* How it is known what is going to be read. */
enum mp_paged_source {
    MP_SOURCE_TOUCHES,   /* from what has been touched */
    MP_SOURCE_CHOSEN,    /* the scheduler's callback, after a router */
    MP_SOURCE_EXPERT,    /* ggml says so of each expert */
    MP_SOURCE_ANNOUNCED, /* the program's own words */
};

/* May a unit be read without asking? */
enum { MP_READY_NO, MP_READY_YES, MP_READY_IN_PLACE };

/* Copies to a device that the program makes from slots; seam.h. With the turn. */
struct mp_seam {
    bool tried; /* to pin the slots */
    char *base; /* of all slots; the first pinned_bytes are pinned */
    uint64_t pinned_bytes;
    void *unpin;
    void *backend;   /* where copies from the open layer's slots may be under way; NULL: nowhere */
    pthread_t owner; /* who queued them */
    void *synchronize;
    uint64_t copies;
};

struct mp_paged {
    struct mp_interpose_settings settings;
    struct mp_host host;
    char path[PATH_MAX]; /* of the first file that was mapped */
    uint64_t number;     /* of the process's models, from 1 */
    uint32_t place;      /* among those that there are */

    struct mp_experts experts;
    struct mp_shown *shown;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_space_plan plan;
    uint64_t budget_bytes;
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
    int pagemap_fd;                      /* -1: nobody looks */
    _Atomic enum mp_paged_source source; /* may become ANNOUNCED once */

    /* Who may call the pager. Held while reads are waited for, so it is none of vmm/base/lock.h. */
    pthread_mutex_t turn;

    /* (units): MP_READY_*. In place: the file's, because there is no room for it. */
    _Atomic uint8_t *ready;
    _Atomic uint64_t open_key; /* what the open layer is open for; 0: none is */
    _Atomic bool off;          /* for good: everything is the file's mapping */

    /* With the turn. */
    bool open;
    uint32_t layer;
    struct mp_need *needs; // (experts)
    uint32_t need_count;
    uint8_t *handed;   // (experts): of needs: 1 handed out
    uint8_t *stays;    // (units): cannot be read by us, so it stays the file's
    uint8_t *resident; // (experts): scratch
    uint32_t *counts;  // (experts): scratch
    const void *(*slots)[MP_UNIT_PIECES_MAX]; // (experts): of needs: their pieces, handed out
    struct mp_seam seam;
    uint32_t tokens, top_k;
    uint32_t *chosen; // (tokens_max * k): of the open layer, while there are few enough tokens

    const char *why; /* the pager cannot go on; NULL: it can */

    /* For the report. */
    uint64_t layers_opened, layers_aborted, failures;
    _Atomic uint64_t wholes;  /* routings to all experts */
    _Atomic uint64_t touches; /* of experts that nobody foresaw */
};

#define MP_PAGED_TOKENS_MAX 64u

/* Other models of the process: what their budgets are, how much of that is still to be filled, and
 * the place that they leave. */
struct mp_paged_beside {
    uint64_t budget_bytes, empty_bytes;
    uint32_t place;
};

/* Count one in. NULL is none. */
void mp_paged_count(const struct mp_paged *paged, struct mp_paged_beside *beside);

/*
 * Decide about a model file, of which the program has a descriptor. MP_ERR_UNSUPPORTED, without a
 * text: nothing there needs paging. On failure nothing is kept.
 */
enum mp_status mp_paged_create(const struct mp_host *host,
                               const struct mp_interpose_settings *settings,
                               const struct mp_paged_beside *beside, int fd,
                               struct mp_paged **paged_p) MP_MUST_CHECK;

/* Would it be? Nothing is made, and nothing is said. */
bool mp_paged_would_be(const struct mp_host *host, const struct mp_interpose_settings *settings,
                       const struct mp_paged_beside *beside, int fd);

/* No thread is in a call any more. NULL is allowed. */
void mp_paged_destroy(struct mp_paged *paged);

/* Does the file begin as GGUF files do? */
bool mp_paged_is_gguf(int fd);

/* The number of the model's file that the descriptor has open; UINT32_MAX: none. */
uint32_t mp_paged_file_of(const struct mp_paged *paged, int fd);

/* routing.c. What a router has chosen: ids(tokens, k). */
struct mp_routing {
    uint32_t layer;
    uint64_t key; /* another one for each other routing; not 0 */
    uint32_t tokens, k;
    const char *ids; /* int32_t, with these strides */
    uint64_t token_stride, rank_stride;
    const char *input; /* (tokens, hidden) float: what the layer's experts compute with, or NULL */
    uint64_t input_stride;
};

/* Of layer, ids and shape; never 0. */
uint64_t mp_paged_key(const struct mp_routing *routing);

/* Open the layer for it, unless it is open. */
void mp_paged_route(struct mp_paged *paged, const struct mp_routing *routing);

/* Return when the unit can be read, or when there is no more use in waiting for it. */
void mp_paged_wait(struct mp_paged *paged, uint32_t unit, uint64_t key);

/* Open the layer for experts that somebody names, and return when they can be read. Ids may repeat;
 * those that are out of range are skipped. */
void mp_paged_announce(struct mp_paged *paged, uint32_t layer, const int64_t *ids, size_t count);

/* Return when all needs of the open layer can be read. */
void mp_paged_wait_all(struct mp_paged *paged, uint64_t key);

/* For good; with one line that says why. */
void mp_paged_stop(struct mp_paged *paged, const char *why);

/* Close the open layer; the caller has the turn. */
void mp_paged_close_layer(struct mp_paged *paged);

/* The units of a layer that somebody has touched, counted by `counts`, and nobody foresaw: those
 * that are to stay are read, which is waited for. */
void mp_paged_note_touches(struct mp_paged *paged, uint32_t layer, const uint32_t *counts);

/*
 * stream.c. A thread is about to read an expert that is not going to be resident, because its layer
 * needs more than there is room for: the kernel is told to read the next ones of that tensor, and
 * to forget those that were read. Experts of a tensor come in ascending order.
 */
void mp_paged_stream(struct mp_paged *paged, const struct mp_expert_tensor *tensor,
                     uint32_t expert);

/* watch.c: a thread that looks now and then whether files have changed and, where no hook says what
 * is read, what has been touched. */
struct mp_paged_watch *mp_paged_watch_create(struct mp_paged *paged);
void mp_paged_watch_destroy(struct mp_paged_watch *watch);

/* Has the unit been touched since it was asked last? Only where that is the source. */
bool mp_paged_was_touched(struct mp_paged *paged, uint32_t unit);

/* ahead.c. Failing to make one costs time only. */
struct mp_paged_ahead *mp_paged_ahead_create(const struct mp_paged *paged);
void mp_paged_ahead_destroy(struct mp_paged_ahead *ahead);

/* The layer that is open for `routing` has begun: guess the next ones and start to read. With the
 * turn. */
void mp_paged_look_ahead(struct mp_paged *paged, const struct mp_routing *routing);

/* Of what was guessed last of each layer, that is as many experts as a token has: how many there
 * were when the layer ran, and how many of them it used. */
void mp_paged_ahead_counts(const struct mp_paged_ahead *ahead, uint64_t *guessed_p,
                           uint64_t *right_p);

/* dense.c: a thread that reads what is not an expert of a file that has been mapped. */
struct mp_paged_dense *mp_paged_dense_create(struct mp_paged *paged);
void mp_paged_dense_add(struct mp_paged_dense *dense, uint32_t file);
void mp_paged_dense_destroy(struct mp_paged_dense *dense);
uint64_t mp_paged_dense_bytes(const struct mp_experts *experts);
bool mp_paged_dense_done(struct mp_paged_dense *dense, uint64_t *bytes_p);

/* report.c: write it where the settings say. */
void mp_paged_report(struct mp_paged *paged);

/* Counted up by a signal handler; whoever watches writes the report then. */
extern _Atomic uint32_t mp_paged_report_asked;

/* "report-%p.json" with the process's number; "report-%p.2.json" for the second of several models
 * that there are at once. */
void mp_paged_expand(const struct mp_paged *paged, const char *name, char out[PATH_MAX]);

/* record.c: trace and timeline, where the settings ask for them. route: with the turn. end: they
 * are written; nobody routes any more. */
void mp_paged_timeline_create(struct mp_paged *paged);
struct mp_paged_record *mp_paged_record_create(struct mp_paged *paged);
void mp_paged_record_route(struct mp_paged *paged, const struct mp_routing *routing);
void mp_paged_record_end(struct mp_paged *paged);

#endif
