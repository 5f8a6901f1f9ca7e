/*
 * Calls of hooks that are about experts: which ones a layer is going to read, by whichever hook
 * says so, and copies of them to a device. Not what is mapped: entry.c.
 */
#include "interpose/entry/entry_int.h"

#include <string.h>

#include "interpose/pager/ggml.h"
#include "interpose/pager/uploads.h"

/* Operations between a router's product and its choice, at most: a bias, a function, groups. */
#define CHAIN_MAX 16u

/* Places from which hooks are called; from others nothing is read of a tensor. */
#define SITES_MAX 64u

/* What a thread has found out about the operation that it is at. */
struct at_work {
    uint64_t model; /* number of the model that it was about */
    uint32_t place;
    const void *dst;
    int64_t expert;
    uint64_t key;
    const struct mp_expert_tensor *tensor;
    bool paged;
};

static _Thread_local struct at_work work;

enum { LAYOUT_UNASKED, LAYOUT_KNOWN, LAYOUT_OTHER };

static int ask_layout(const void *site)
{
    if (mp_ggml_check(mp_entry_host.find, site))
        return LAYOUT_KNOWN;
    mp_log_once(MP_LOG_WARN, "preload",
                "this version of ggml is not known: experts are paged by what is touched");
    return LAYOUT_OTHER;
}

/* Of the ggml that `site` is in, or calls: a process may have several. Each calls hooks from a few
 * places. */
static bool knows_layout(const void *site)
{
    static struct {
        _Atomic uintptr_t key; /* 0: free */
        _Atomic int layout;
    } sites[SITES_MAX];
    const uintptr_t key = (uintptr_t)site + 1;

    for (uint32_t i = 0; i < SITES_MAX; i++) {
        uintptr_t at = atomic_load_explicit(&sites[i].key, memory_order_acquire);
        int layout;

        if (at != key &&
            (at != 0 || (!atomic_compare_exchange_strong(&sites[i].key, &at, key) && at != key)))
            continue;
        layout = atomic_load_explicit(&sites[i].layout, memory_order_acquire);
        if (layout == LAYOUT_UNASKED) {
            layout = ask_layout(site);
            atomic_store_explicit(&sites[i].layout, layout, memory_order_release);
        }
        return layout == LAYOUT_KNOWN;
    }
    return false;
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
        atomic_fetch_add_explicit(&paged->full_routings, 1, memory_order_relaxed);
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

/* What the layer's experts compute with, if it is as it usually is: a row of floats per token. */
static void take_input(const struct mp_paged *paged, const struct mp_ggml_tensor *input,
                       struct mp_routing *routing)
{
    if (input == NULL || input->data == NULL || input->type != MP_GGML_F32 ||
        input->ne[0] != paged->experts.hidden || input->nb[0] != sizeof(float) ||
        input->ne[1] * input->ne[2] != routing->tokens || input->ne[3] != 1)
        return;
    routing->input = input->data;
    routing->input_stride = input->ne[1] == 1 ? input->nb[2] : input->nb[1];
}

/* A thread begins with an operation: is it about our experts, and what do they have to be? */
static void begin_work(struct mp_paged *paged, const struct mp_ggml_tensor *dst)
{
    const struct mp_ggml_tensor *weights = dst->src[0];
    struct mp_routing routing;
    uint64_t offset;
    uint32_t file;

    work.model = paged->number;
    work.place = paged->index;
    work.dst = dst;
    work.tensor = NULL;
    work.paged = false;
    if (weights != NULL && weights->ne[2] == paged->experts.experts &&
        mp_mappings_locate(paged->mappings, weights->data, &file, &offset))
        work.tensor = mp_experts_find(&paged->experts, file, offset);
    if (work.tensor == NULL)
        return;
    work.key = read_routing(paged, work.tensor->layer, dst->src[2], &routing);
    work.paged = work.key != 0;
    if (!work.paged)
        return;
    take_input(paged, dst->src[1], &routing);
    mp_paged_route(paged, &routing);
}

static void wait_for(struct mp_paged *paged, uint32_t number)
{
    const uint32_t unit = work.tensor->layer * paged->experts.experts + number;

    mp_paged_wait(paged, unit, work.tensor->piece, work.key);
    if (atomic_load_explicit(&paged->ready[unit], memory_order_acquire) == MP_READY_IN_PLACE)
        mp_paged_stream(paged, work.tensor, number);
}

/* The model that `dst` is about: as a rule the one that it was about when this thread asked for the
 * expert before. */
static struct mp_paged *begin_expert(const struct mp_ggml_tensor *dst, int64_t number)
{
    const bool goes_on = dst == work.dst && number > work.expert;
    struct mp_paged *paged = goes_on ? mp_entry_begin(work.place) : NULL;

    if (paged != NULL && paged->number == work.model)
        return paged;
    if (paged != NULL)
        mp_entry_end(paged);
    if (dst->src[0] == NULL)
        return NULL;
    paged = mp_entry_begin_at(dst->src[0]->data);
    if (paged == NULL)
        return NULL;
    if (paged->source == MP_SOURCE_EXPERT &&
        !atomic_load_explicit(&paged->off, memory_order_relaxed)) {
        begin_work(paged, dst);
        return paged;
    }
    mp_entry_end(paged);
    return NULL;
}

void mp_call_expert(const void *site, const void *dst, int64_t number, int64_t rows)
{
    struct mp_paged *paged = knows_layout(site) ? begin_expert(dst, number) : NULL;

    (void)rows;
    if (paged == NULL)
        return;
    work.expert = number;
    if (work.paged && number >= 0 && number < paged->experts.experts &&
        !atomic_load_explicit(&paged->off, memory_order_relaxed))
        wait_for(paged, (uint32_t)number);
    mp_entry_end(paged);
}

static _Atomic(const void *) chosen_site; /* of the scheduler's callback */

/* On a device the address of a tensor is none of ours. */
static bool is_on_host(const struct mp_ggml_tensor *tensor)
{
    bool (*is_host)(void *) = (bool (*)(void *))mp_entry_host.find(atomic_load(&chosen_site),
                                                                   "ggml_backend_buffer_is_host");

    return tensor->buffer == NULL || is_host == NULL || is_host(tensor->buffer);
}

bool mp_call_wants_chosen(const void *site)
{
    bool wanted = false;

    for (uint32_t p = 0; p < MP_MODELS_MAX && !wanted; p++) {
        struct mp_paged *paged = mp_entry_begin(p);

        if (paged == NULL)
            continue;
        atomic_store(&chosen_site, site);
        wanted =
            paged->source == MP_SOURCE_CHOSEN && !atomic_load(&paged->off) && knows_layout(site);
        mp_entry_end(paged);
    }
    return wanted;
}

/* The product behind a choice, router times input, if the choice is made of one as usual: then it
 * says whose layer it is, and with what input. Not on a device, where nothing can be read. */
static const struct mp_ggml_tensor *find_product(const struct mp_ggml_tensor *chosen)
{
    const struct mp_ggml_tensor *tensor = chosen;

    for (unsigned n = 0; n < CHAIN_MAX && tensor != NULL; n++, tensor = tensor->src[0]) {
        const struct mp_ggml_tensor *weight = tensor->src[0];
        struct mp_paged *paged = weight != NULL && weight->data != NULL && tensor->src[1] != NULL
                                     ? mp_entry_begin_at(weight->data)
                                     : NULL;

        if (paged == NULL)
            continue;
        mp_entry_end(paged);
        return tensor;
    }
    return NULL;
}

/* The model of which a router has chosen: by that router, or the only one that there is. */
static struct mp_paged *begin_chosen(const struct mp_ggml_tensor *product)
{
    struct mp_paged *only = NULL;

    if (product != NULL)
        return mp_entry_begin_at(product->src[0]->data);
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = mp_entry_begin(p);

        if (paged == NULL)
            continue;
        if (only != NULL) {
            mp_entry_end(only);
            mp_entry_end(paged);
            return NULL;
        }
        only = paged;
    }
    return only;
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

bool mp_call_is_chosen(const void *tensor)
{
    const struct mp_ggml_tensor *chosen = tensor;
    bool is = false;

    for (uint32_t p = 0; p < MP_MODELS_MAX && !is; p++) {
        struct mp_paged *paged = mp_entry_begin(p);
        uint32_t layer;

        if (paged == NULL)
            continue;
        is = !atomic_load(&paged->off) && find_layer(paged, chosen->name, &layer);
        mp_entry_end(paged);
    }
    return is;
}

void mp_call_chosen(const void *tensor)
{
    const struct mp_ggml_tensor *ids = tensor, *product = find_product(ids);
    struct mp_paged *paged = begin_chosen(product);
    struct mp_routing routing;
    uint64_t key = 0;
    uint32_t layer;

    if (paged == NULL)
        return;
    if (!atomic_load(&paged->off) && find_layer(paged, ids->name, &layer) && is_on_host(ids))
        key = read_routing(paged, layer, ids, &routing);
    if (key != 0) {
        if (product != NULL && is_on_host(product->src[1]))
            take_input(paged, product->src[1], &routing);
        mp_paged_route(paged, &routing);
        mp_paged_wait_all(paged, key);
    }
    mp_entry_end(paged);
}

bool mp_call_routed(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count)
{
    struct mp_paged *paged = mp_entry_begin_at(weights);
    const struct mp_expert_tensor *tensor = NULL;
    uint64_t offset;
    uint32_t file;
    bool right;

    if (paged == NULL)
        return false;
    if (!atomic_load(&paged->off) && mp_mappings_locate(paged->mappings, weights, &file, &offset))
        tensor = mp_experts_find(&paged->experts, file, offset);
    right =
        tensor != NULL && tensor->offset_bytes == offset && tensor->expert_bytes == expert_bytes;
    if (right)
        mp_paged_announce(paged, tensor->layer, ids, count);
    mp_entry_end(paged);
    return right;
}

/* ---- copies that the program makes to a device */

void mp_call_ids_read(const void *site, const void *tensor, const void *data, size_t bytes)
{
    if (knows_layout(site))
        mp_upload_note_ids(tensor, data, bytes);
}

bool mp_call_copy(const void *site, const struct mp_copy_call *wanted)
{
    struct mp_paged *paged = mp_entry_begin_at(wanted->data);
    bool done;

    if (paged == NULL)
        return false;
    done = !atomic_load(&paged->off);
    if (done)
        mp_upload_copy(paged, site, wanted);
    mp_entry_end(paged);
    return done;
}

void mp_call_synchronized(const void *backend, bool ends)
{
    for (uint32_t p = 0; p < MP_MODELS_MAX; p++) {
        struct mp_paged *paged = mp_entry_begin(p);

        if (paged == NULL)
            continue;
        if (ends)
            mp_upload_backend_ends(paged, backend);
        else
            mp_upload_synchronized(paged, backend);
        mp_entry_end(paged);
    }
}

void mp_call_whole(const void *site, const void *tensor)
{
    const struct mp_ggml_tensor *weights = tensor;
    struct mp_paged *paged = knows_layout(site) && weights->data != NULL && weights->nb[3] > 0
                                 ? mp_entry_begin_at(weights->data)
                                 : NULL;

    if (paged != NULL) {
        mp_upload_read_ahead(paged, weights->data, weights->nb[3]);
        mp_entry_end(paged);
    }
}
