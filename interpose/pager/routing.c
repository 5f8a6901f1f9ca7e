/*
 * Layers: what a router has chosen becomes needs of the pager, and who is about to read an expert
 * waits until it has come. An expert comes in pieces, in the order in which they are used: who
 * reads the first one does not wait for the others.
 *
 * A layer stays open until another one, or another routing of the same, opens: only then is it
 * known that nobody reads its experts any more. Where several contexts of a program run at once one
 * closes the layer of another early; its experts may then be unmapped while they are read, which is
 * right all the same, because the file is there.
 */
#include <inttypes.h>
#include <string.h>

#include "interpose/pager/uploads.h"
#include "vmm/base/error.h"

/* Slots that stay free for what is read ahead while a layer needs more than there is room for. */
#define SLOTS_SPARE 2

static void set_ready(struct mp_paged *paged, uint32_t unit, uint8_t ready)
{
    atomic_store_explicit(&paged->ready[unit], ready, memory_order_release);
}

/* Needs that have come since somebody last asked. */
static void take_rest(struct mp_paged *paged)
{
    struct mp_ready ready;

    while (mp_pager_next_now(paged->pager, &ready) == MP_OK && ready.need != MP_NEED_NONE)
        paged->leased[ready.need] = 1;
}

void mp_paged_close_layer(struct mp_paged *paged)
{
    uint32_t left = 0;

    if (!paged->open)
        return;
    mp_upload_drain(paged);
    take_rest(paged);
    paged->open = false;
    atomic_store_explicit(&paged->open_key, 0, memory_order_release);
    for (uint32_t i = 0; i < paged->need_count; i++) {
        if (paged->leased[i])
            mp_pager_done(paged->pager, i);
        else
            left += !paged->needs[i].elsewhere;
    }
    if (left == 0) {
        mp_pager_end(paged->pager);
    } else {
        mp_pager_abort(paged->pager);
        paged->layers_aborted++;
    }
    mp_error_clear();
}

void mp_paged_stop(struct mp_paged *paged, const char *why)
{
    if (atomic_exchange(&paged->off, true))
        return;
    mp_log_warn("preload", "experts of '%s' are no longer paged: %s", paged->path, why);
    if (paged->open) { /* nothing is read into a slot any more, so copies from there may go on */
        mp_pager_abort(paged->pager);
        paged->open = false;
    }
    atomic_store(&paged->open_key, 0);
    mp_mappings_unmap_units(paged->mappings);
}

/* Somebody may have closed our descriptors, and what was read since then is another file's. */
static bool was_read_from_files(struct mp_paged *paged, const struct mp_unit *unit, uint32_t pieces)
{
    for (uint32_t k = 0; k < unit->piece_count; k++) {
        if ((pieces & 1u << k) != 0 && !mp_mappings_own_file(paged->mappings, unit->pieces[k].file))
            return false;
    }
    return true;
}

/* Pieces of a unit, at these addresses of its slot, have their bytes: from now on they are read
 * from there. */
static void map_pieces(struct mp_paged *paged, uint32_t unit, uint32_t pieces,
                       const void *const at[MP_UNIT_PIECES_MAX])
{
    const struct mp_unit *what = &paged->experts.units[unit];
    uint64_t offsets[MP_UNIT_PIECES_MAX] = { 0 };
    int fd = -1;

    pieces &= (1u << what->piece_count) - 1u;
    pieces &= ~mp_mappings_has_unit(paged->mappings, unit);
    if (pieces == 0)
        return;
    if (!was_read_from_files(paged, what, pieces)) {
        mp_paged_stop(paged, "the program has closed our descriptors");
        return;
    }
    for (uint32_t k = 0; k < what->piece_count; k++) {
        if ((pieces & 1u << k) != 0)
            fd = mp_backend_host_file(paged->backend,
                                      (const char *)at[k] -
                                          what->pieces[k].offset_bytes % MP_SPACE_PAGE_BYTES,
                                      &offsets[k]);
    }
    if (fd >= 0 && !mp_mappings_map_unit(paged->mappings, unit, pieces, fd, offsets))
        mp_log_once(MP_LOG_INFO, "preload", "an expert cannot be mapped, and is read in place");
}

/* A need has all of its bytes and a lease. */
static void map_ready(struct mp_paged *paged, const struct mp_ready *ready)
{
    const uint32_t unit = paged->layer * paged->experts.experts + paged->needs[ready->need].expert;

    paged->leased[ready->need] = 1;
    memcpy(paged->slots[ready->need], ready->pieces, sizeof(paged->slots[0]));
    map_pieces(paged, unit, MP_READY_YES, ready->pieces);
    if (atomic_load(&paged->off))
        return;
    if (paged->source == MP_SOURCE_TOUCHES)
        (void)mp_paged_was_touched(paged, unit); /* by us */
    set_ready(paged, unit, MP_READY_YES);
}

/* True: the piece has come, whether or not the rest of its unit has. */
static bool take_piece(struct mp_paged *paged, uint32_t unit, uint32_t piece)
{
    const void *at[MP_UNIT_PIECES_MAX] = { NULL };

    at[piece] = mp_space_piece(paged->space, unit, piece);
    if (at[piece] == NULL)
        return false;
    map_pieces(paged, unit, 1u << piece, at);
    atomic_fetch_or_explicit(&paged->ready[unit], (uint8_t)(1u << piece), memory_order_release);
    return true;
}

/* What could not be read stays the file's, whoever asks. A changed file ends it all. */
static void note_failure(struct mp_paged *paged)
{
    const uint32_t first = paged->layer * paged->experts.experts;
    bool found = false;

    for (uint32_t f = 0; f < mp_files_count(paged->experts.files); f++) {
        if (mp_files_check(paged->experts.files, f) != MP_OK) {
            mp_paged_stop(paged, mp_error_last()->text);
            return;
        }
    }
    if (paged->failures++ == 0 && paged->why == NULL)
        mp_log_warn("preload", "experts that cannot be read are the program's own: %s",
                    mp_error_last()->text);
    for (uint32_t i = 0; i < paged->need_count; i++) {
        const uint32_t unit = first + paged->needs[i].expert;

        if (mp_space_state(paged->space, unit) == MP_RES_FAILED) {
            paged->unreadable[unit] = true;
            found = true;
        }
        set_ready(paged, unit, MP_READY_YES);
    }
    mp_paged_close_layer(paged);
    if (!found)
        mp_paged_stop(paged, paged->why != NULL ? paged->why : "the pager failed");
}

static void note_reading(struct mp_paged *paged)
{
    bool reading = false;

    for (uint32_t i = 0; i < paged->need_count && paged->open; i++)
        reading |= !paged->leased[i] && !paged->needs[i].elsewhere;
    atomic_store_explicit(&paged->reading, reading, memory_order_relaxed);
}

/* Map what has come so far, and let the pager read on. */
static void take_ready(struct mp_paged *paged)
{
    while (paged->open) {
        struct mp_ready ready;

        if (mp_pager_next_now(paged->pager, &ready) != MP_OK) {
            note_failure(paged);
            break;
        }
        if (ready.need == MP_NEED_NONE)
            break;
        map_ready(paged, &ready);
    }
    note_reading(paged);
}

/* counts(experts) := tokens that chose each, and the choices as the policies want them. */
static bool count_choices(struct mp_paged *paged, const struct mp_routing *routing)
{
    const uint32_t experts = paged->experts.experts;
    const bool few = routing->tokens <= MP_PAGED_TOKENS_MAX && routing->k <= paged->shape.top_k;

    memset(paged->counts, 0, experts * sizeof(*paged->counts));
    for (uint32_t t = 0; t < routing->tokens; t++) {
        for (uint32_t r = 0; r < routing->k; r++) {
            int32_t id;

            memcpy(&id, routing->ids + t * routing->token_stride + r * routing->rank_stride,
                   sizeof(id));
            if (id < 0 || (uint32_t)id >= experts)
                return false;
            paged->counts[id]++;
            if (few)
                paged->chosen[t * routing->k + r] = (uint32_t)id;
        }
    }
    paged->tokens = few ? routing->tokens : 0;
    paged->top_k = routing->k;
    return true;
}

/* Needs that there is a slot for, residents first; the others are read where they are. */
static void list_needs(struct mp_paged *paged, uint32_t layer)
{
    const uint32_t experts = paged->experts.experts, slots = mp_pager_slots(paged->pager);
    uint32_t room = slots > 2 * SLOTS_SPARE ? slots - SLOTS_SPARE : slots;

    mp_pager_residents(paged->pager, layer, true, paged->resident);
    for (uint32_t e = 0; e < experts; e++)
        room -= room > 0 && paged->counts[e] > 0 && paged->resident[e];
    paged->need_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        struct mp_need *need = &paged->needs[paged->need_count];
        const uint32_t unit = layer * experts + e;

        if (paged->counts[e] == 0)
            continue;
        *need = (struct mp_need){ .expert = e, .tokens = paged->counts[e] };
        need->elsewhere = paged->unreadable[unit] || (!paged->resident[e] && room == 0);
        room -= !need->elsewhere && !paged->resident[e];
        paged->leased[paged->need_count++] = 0;
        set_ready(paged, unit, need->elsewhere ? MP_READY_IN_PLACE : MP_READY_NO);
    }
}

static void open_layer(struct mp_paged *paged, const struct mp_routing *routing)
{
    if (mp_upload_blocks(paged))
        return; /* what it needs is read in place */
    mp_paged_close_layer(paged);
    if (!count_choices(paged, routing))
        return;
    list_needs(paged, routing->layer);
    paged->layer = routing->layer;
    if (mp_pager_begin(paged->pager, routing->layer, paged->needs, paged->need_count) != MP_OK) {
        note_failure(paged);
        return;
    }
    paged->open = true;
    paged->layers_opened++;
    mp_paged_record_route(paged, routing);
    take_ready(paged);
    if (!paged->open)
        return;
    atomic_store_explicit(&paged->open_key, routing->key, memory_order_release);
    mp_paged_prefetch(paged, routing);
}

uint64_t mp_paged_key(const struct mp_routing *routing)
{
    /* Mixed before the first id, or layer 1 with expert 4 would be layer 2 with expert 5. */
    uint64_t key = (0x9e3779b97f4a7c15u + routing->layer + ((uint64_t)routing->tokens << 32)) *
                   0x94d049bb133111ebu;

    key ^= key >> 31;
    for (uint32_t t = 0; t < routing->tokens; t++) {
        for (uint32_t r = 0; r < routing->k; r++) {
            int32_t id;

            memcpy(&id, routing->ids + t * routing->token_stride + r * routing->rank_stride,
                   sizeof(id));
            key = (key ^ (uint32_t)id) * 0xbf58476d1ce4e5b9u;
            key ^= key >> 29;
        }
    }
    return key | 1;
}

void mp_paged_route(struct mp_paged *paged, const struct mp_routing *routing)
{
    if (atomic_load_explicit(&paged->open_key, memory_order_acquire) == routing->key)
        return;
    pthread_mutex_lock(&paged->mutex);
    if (atomic_load_explicit(&paged->open_key, memory_order_relaxed) != routing->key &&
        !atomic_load(&paged->off))
        open_layer(paged, routing);
    pthread_mutex_unlock(&paged->mutex);
}

static bool is_ready(const struct mp_paged *paged, uint32_t unit, uint32_t piece)
{
    return (atomic_load_explicit(&paged->ready[unit], memory_order_acquire) & 1u << piece) != 0;
}

/* Nobody waits, but the pager does not know what has come meanwhile, and what to read next. */
static void look_around(struct mp_paged *paged)
{
    if (!atomic_load_explicit(&paged->reading, memory_order_relaxed) ||
        pthread_mutex_trylock(&paged->mutex) != 0)
        return;
    if (paged->open)
        take_ready(paged);
    pthread_mutex_unlock(&paged->mutex);
}

/* What a thread waits for. */
struct wanted {
    const struct mp_space *space;
    uint32_t unit, piece;
};

static bool has_come(void *ctx)
{
    const struct wanted *wanted = ctx;

    return mp_space_piece(wanted->space, wanted->unit, wanted->piece) != NULL;
}

/* With `mutex` held: one step towards the piece. */
static void wait_once(struct mp_paged *paged, struct wanted *wanted)
{
    const struct mp_interrupt interrupt = { .ready = has_come, .ctx = wanted, .exposed = true };
    struct mp_ready ready;
    const enum mp_status status = mp_pager_next_or(paged->pager, &interrupt, &ready);

    if (status == MP_OK && ready.need != MP_NEED_NONE)
        map_ready(paged, &ready);
    else if (status != MP_OK && status != MP_ERR_BUSY)
        note_failure(paged);
    else if (!has_come(wanted)) /* it is nobody's need, or there is no room for it */
        set_ready(paged, wanted->unit, MP_READY_YES);
}

void mp_paged_wait(struct mp_paged *paged, uint32_t unit, uint32_t piece, uint64_t key)
{
    struct wanted wanted = { paged->space, unit, piece };

    if (is_ready(paged, unit, piece)) {
        look_around(paged);
        return;
    }
    pthread_mutex_lock(&paged->mutex);
    while (!is_ready(paged, unit, piece) && paged->open &&
           atomic_load_explicit(&paged->open_key, memory_order_relaxed) == key &&
           !take_piece(paged, unit, piece))
        wait_once(paged, &wanted);
    if (paged->open)
        take_ready(paged);
    pthread_mutex_unlock(&paged->mutex);
}

/* With `mutex` held: map what comes until all needs of the open layer are there. */
static void take_all(struct mp_paged *paged)
{
    while (paged->open) {
        struct mp_ready ready;
        const enum mp_status status = mp_pager_next(paged->pager, &ready);

        if (status == MP_ERR_BUSY || (status == MP_OK && ready.need == MP_NEED_NONE))
            return; /* what is left has no room, and is read in place */
        if (status == MP_OK)
            map_ready(paged, &ready);
        else
            note_failure(paged);
    }
}

void mp_paged_wait_all(struct mp_paged *paged, uint64_t key)
{
    pthread_mutex_lock(&paged->mutex);
    if (paged->open && atomic_load_explicit(&paged->open_key, memory_order_relaxed) == key)
        take_all(paged);
    pthread_mutex_unlock(&paged->mutex);
}

/* With `mutex` held: open the layer for what `counts` has. */
static void open_counted(struct mp_paged *paged, uint32_t layer)
{
    if (atomic_load(&paged->off))
        return;
    paged->tokens = 0;
    list_needs(paged, layer);
    paged->layer = layer;
    if (mp_pager_begin(paged->pager, layer, paged->needs, paged->need_count) != MP_OK) {
        note_failure(paged);
        return;
    }
    paged->open = true;
    paged->layers_opened++;
    take_all(paged);
}

void mp_paged_announce(struct mp_paged *paged, uint32_t layer, const int64_t *ids, size_t count)
{
    const uint32_t experts = paged->experts.experts;

    pthread_mutex_lock(&paged->mutex);
    if (mp_upload_blocks(paged)) {
        pthread_mutex_unlock(&paged->mutex);
        return;
    }
    mp_paged_close_layer(paged);
    memset(paged->counts, 0, experts * sizeof(*paged->counts));
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < experts)
            paged->counts[ids[i]]++;
    }
    if (paged->source != MP_SOURCE_ANNOUNCED)
        mp_mappings_allow_private(paged->mappings); /* a layer is computed with what it names */
    paged->source = MP_SOURCE_ANNOUNCED;
    open_counted(paged, layer);
    pthread_mutex_unlock(&paged->mutex);
}

void mp_paged_note_touches(struct mp_paged *paged, uint32_t layer, const uint32_t *counts)
{
    pthread_mutex_lock(&paged->mutex);
    if (paged->source == MP_SOURCE_TOUCHES && !mp_upload_blocks(paged)) {
        mp_paged_close_layer(paged);
        memcpy(paged->counts, counts, paged->experts.experts * sizeof(*counts));
        open_counted(paged, layer);
        mp_paged_close_layer(paged);
    }
    pthread_mutex_unlock(&paged->mutex);
}
