/*
 * Hooks of functions of ggml and llama.cpp that say which experts are going to be read. All are
 * exported by the program's own libraries and called through their linkage tables, so that ours
 * come first; where a program has none of them, nothing here is ever called.
 */
#include <string.h>

#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"

#define SITE __builtin_return_address(0)

/* The interposer, where something is paged. */
static const struct mp_interposer *paging(void)
{
    return mp_preload_opened() != NULL &&
                   atomic_load_explicit(&mp_preload_span.end, memory_order_acquire) != 0
               ? mp_preload_opened()
               : NULL;
}

/* libggml-cpu, per thread and expert, before the expert's bytes are read (since July 2026). */
bool ggml_compute_forward_mul_mat_id_tiled(const void *params, void *dst, int64_t expert,
                                           int64_t rows, const int32_t *row_ids,
                                           char *scratch) MOEPAGER_API;

bool ggml_compute_forward_mul_mat_id_tiled(const void *params, void *dst, int64_t expert,
                                           int64_t rows, const int32_t *row_ids, char *scratch)
{
    static struct mp_hooked hooked = { .name = "ggml_compute_forward_mul_mat_id_tiled",
                                       .hook = (void *)ggml_compute_forward_mul_mat_id_tiled };
    bool (*const real)(const void *, void *, int64_t, int64_t, const int32_t *, char *) =
        mp_preload_behind(&hooked, SITE);
    const struct mp_interposer *interposer = paging();

    if (interposer != NULL)
        interposer->expert(SITE, dst, expert, rows);
    return real != NULL && real(params, dst, expert, rows, row_ids, scratch);
}

/* Asked while a model is being loaded: its files are open, and not mapped yet. */
static bool is_loading_paged(void)
{
    const struct mp_interposer *interposer = mp_preload_open();

    return interposer != NULL && interposer->expects();
}

/* libggml-base: copies of weights in other layouts (repacking) would take experts out of their
 * mapping, so that nothing would be paged. */
void *ggml_backend_reg_get_proc_address(void *reg, const char *name) MOEPAGER_API;

void *ggml_backend_reg_get_proc_address(void *reg, const char *name)
{
    static struct mp_hooked hooked = { .name = "ggml_backend_reg_get_proc_address",
                                       .hook = (void *)ggml_backend_reg_get_proc_address };
    void *(*const real)(void *, const char *) = mp_preload_behind(&hooked, SITE);

    if (name != NULL && strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0 && is_loading_paged())
        return NULL;
    return real != NULL ? real(reg, name) : NULL;
}

/* libllama: a warm-up that reads all experts would read the whole model through the budget. The
 * program throws its result away; with the usual experts it warms up all the same. */
void llama_set_warmup(void *context, bool warmup) MOEPAGER_API;

void llama_set_warmup(void *context, bool warmup)
{
    static struct mp_hooked hooked = { .name = "llama_set_warmup",
                                       .hook = (void *)llama_set_warmup };
    void (*const real)(void *, bool) = mp_preload_behind(&hooked, SITE);

    if (real != NULL)
        real(context, warmup && paging() == NULL);
}

typedef bool (*eval_fn)(void *tensor, bool ask, void *data);

/* The program's callback behind ours; both may be asked for the same tensor. */
struct chained {
    _Atomic(void *) scheduler; /* NULL: free */
    eval_fn callback;          /* or NULL */
    void *data;
    bool asked; /* the program wants to see the tensor that was asked for last */
};

static struct chained chains[16];

/* With `ask`: does somebody want to see the tensor? Without: here it is; false ends the graph. */
static bool on_eval(void *tensor, bool ask, void *data)
{
    struct chained *chained = data;
    const struct mp_interposer *interposer = paging();
    const bool ours = interposer != NULL && interposer->is_chosen(tensor);

    if (ask) {
        chained->asked =
            chained->callback != NULL && chained->callback(tensor, true, chained->data);
        return ours || chained->asked;
    }
    if (ours)
        interposer->chosen(tensor);
    return !chained->asked || chained->callback(tensor, false, chained->data);
}

static struct chained *chain_of(void *scheduler)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(chains); i++) {
        void *known = NULL;

        if (atomic_compare_exchange_strong(&chains[i].scheduler, &known, scheduler) ||
            known == scheduler)
            return &chains[i];
    }
    return NULL;
}

/* libggml-base: set anew before every graph. */
void ggml_backend_sched_set_eval_callback(void *scheduler, eval_fn callback,
                                          void *data) MOEPAGER_API;

void ggml_backend_sched_set_eval_callback(void *scheduler, eval_fn callback, void *data)
{
    static struct mp_hooked hooked = { .name = "ggml_backend_sched_set_eval_callback",
                                       .hook = (void *)ggml_backend_sched_set_eval_callback };
    void (*const real)(void *, eval_fn, void *) = mp_preload_behind(&hooked, SITE);
    const struct mp_interposer *interposer = paging();
    struct chained *chained = NULL;

    if (interposer != NULL && interposer->wants_chosen(SITE))
        chained = chain_of(scheduler);
    if (chained != NULL) {
        chained->callback = callback;
        chained->data = data;
        callback = on_eval;
        data = chained;
    }
    if (real != NULL)
        real(scheduler, callback, data);
}

/* libggml-base: another scheduler may get its address, and programs make and free many. */
void ggml_backend_sched_free(void *scheduler) MOEPAGER_API;

void ggml_backend_sched_free(void *scheduler)
{
    static struct mp_hooked hooked = { .name = "ggml_backend_sched_free",
                                       .hook = (void *)ggml_backend_sched_free };
    void (*const real)(void *) = mp_preload_behind(&hooked, SITE);

    if (scheduler != NULL) {
        for (size_t i = 0; i < MP_ARRAY_LEN(chains); i++) {
            void *known = scheduler;

            (void)atomic_compare_exchange_strong(&chains[i].scheduler, &known, NULL);
        }
        mp_preload_forget_copies(scheduler);
    }
    if (real != NULL)
        real(scheduler);
}

/* For the Python module (interpose/python), and for programs that know us. 0: the experts are
 * paged, and have been read, or cannot be. */
int moepager_preload_routed(const void *weights, uint64_t expert_stride_bytes, const int64_t *ids,
                            size_t count) MOEPAGER_API;

int moepager_preload_routed(const void *weights, uint64_t expert_stride_bytes, const int64_t *ids,
                            size_t count)
{
    const struct mp_interposer *interposer = paging();

    return interposer != NULL && interposer->routed(weights, expert_stride_bytes, ids, count) ? 0
                                                                                              : -1;
}
