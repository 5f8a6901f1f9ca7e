/*
 * The search of MoEpic's cache configurator: how many slots each layer gets and how much of an
 * expert it keeps; fixed_point_config.h has the equations. It counts nothing itself: fixed_point.c
 * does.
 */
#include "policy/partition/fixed_point_config.h"

#include <math.h>

/* Ends the search where the pause would show; each move makes the model faster than the last, so
 * what is found by then is used. */
#define MOVES_MAX 1000

void mp_fixed_point_take(struct mp_fixed_point *point, const struct mp_shape *shape,
                         uint32_t guesses, struct mp_arena *arena)
{
    const size_t layers = shape->layers, experts = shape->experts, ranks = layers * guesses;

    *point = (struct mp_fixed_point){
        .layers = shape->layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .guesses = guesses,
        .slices = shape->slices > 1 ? shape->slices : 1,
    };
    point->tokens = mp_arena_take(arena, layers, sizeof(uint64_t));
    point->asked = mp_arena_take(arena, layers, sizeof(uint64_t));
    point->active = mp_arena_take(arena, layers * experts, sizeof(uint32_t));
    point->right = mp_arena_take(arena, ranks, sizeof(uint32_t));
    point->held = mp_arena_take(arena, ranks * experts, sizeof(uint32_t));
    point->active_below = mp_arena_take(arena, layers * (experts + 1), sizeof(uint32_t));
    point->held_below = mp_arena_take(arena, ranks * (experts + 1), sizeof(uint32_t));
}

static void sum_rows(const uint32_t *counts, uint32_t *below, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t c = 0; c < columns; c++)
            below[i * (columns + 1) + c + 1] =
                below[i * (columns + 1) + c] + counts[i * columns + c];
    }
}

void mp_fixed_point_sum(struct mp_fixed_point *point)
{
    sum_rows(point->active, point->active_below, point->layers, point->experts);
    sum_rows(point->held, point->held_below, (size_t)point->layers * point->guesses,
             point->experts);
}

/*
 * m of eq. 11: activated experts of a token that are in the device tier when the router has spoken,
 * with `cache` experts of which theta is held, and window_ns to load the rest ahead.
 */
static double loaded_experts(const struct mp_fixed_point *point, uint32_t layer, uint32_t cache,
                             double theta, double window_ns)
{
    const uint32_t *active = point->active_below + (size_t)layer * (point->experts + 1);
    double loaded = 0;

    if (point->tokens[layer] > 0)
        loaded = active[cache] * theta / (double)point->tokens[layer]; /* K * H(C) * theta */
    if (point->asked[layer] == 0)
        return loaded < point->top_k ? loaded : point->top_k;
    for (uint32_t y = 0; y < point->guesses; y++) {
        const size_t row = (size_t)layer * point->guesses + y;
        const double asked = (double)point->asked[layer];
        const double absent =
            1 - point->held_below[row * (point->experts + 1) + cache] / asked * theta;

        window_ns -= absent * point->load_ns; /* eq. 9 */
        if (window_ns < 0)
            break;
        loaded += absent * point->right[row] / asked; /* eq. 10 */
    }
    return loaded < point->top_k ? loaded : point->top_k;
}

void mp_fixed_point_split(const struct mp_fixed_point *point, const uint32_t *slots,
                          double *late_ns, uint32_t *retained)
{
    const double all_ns = point->top_k * point->expert_ns;
    const uint32_t most = point->fixed_top > 0 ? point->fixed_top : point->slices;
    const uint32_t least = point->fixed_top > 0 ? point->fixed_top : 1;
    double window_ns = point->attention_ns; /* of the first layer; the head's time is not known */

    for (uint32_t l = 0; l < point->layers; l++) {
        double best = -1, hide_ns, miss_ns;

        retained[l] = most;
        for (uint32_t kept = most; kept >= least; kept--) {
            const double theta = (double)kept / point->slices;
            const uint64_t room = (uint64_t)slots[l] * point->slices / kept;
            const uint32_t cache = room < point->experts ? (uint32_t)room : point->experts;
            const double loaded = loaded_experts(point, l, cache, theta, window_ns);

            if (loaded > best) {
                best = loaded;
                retained[l] = kept;
            }
        }
        hide_ns = best * point->expert_ns; /* eq. 5 */
        miss_ns = (point->top_k - best) * point->load_ns;
        late_ns[l] = miss_ns > hide_ns ? miss_ns - hide_ns : 0;            /* eq. 6 */
        window_ns = all_ns - fmin(hide_ns, miss_ns) + point->attention_ns; /* eq. 7 */
    }
}

/* The layer where more slots help most; `layers` if none can take more. */
static uint32_t find_taker(const struct mp_fixed_point *point, uint32_t step, const uint32_t *slots,
                           const double *now_ns, const double *more_ns)
{
    uint32_t best = point->layers;

    for (uint32_t l = 0; l < point->layers; l++) {
        if (slots[l] + step <= point->experts &&
            (best == point->layers || now_ns[l] - more_ns[l] > now_ns[best] - more_ns[best]))
            best = l;
    }
    return best;
}

static uint32_t find_donor(const struct mp_fixed_point *point, uint32_t step, const uint32_t *slots,
                           const double *now_ns, const double *less_ns, uint32_t taker)
{
    uint32_t best = point->layers;

    for (uint32_t l = 0; l < point->layers; l++) {
        if (l != taker && slots[l] > step &&
            (best == point->layers || less_ns[l] - now_ns[l] < less_ns[best] - now_ns[best]))
            best = l;
    }
    return best;
}

static double sum_of(const double *values, uint32_t count)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

uint32_t mp_fixed_point_allocate(const struct mp_fixed_point *point, uint32_t step, uint32_t *slots,
                                 uint32_t *retained, double *late_scratch, uint32_t *slot_scratch)
{
    const uint32_t layers = point->layers;
    double *now_ns = late_scratch, *more_ns = now_ns + layers, *less_ns = more_ns + layers;
    double *then_ns = less_ns + layers;
    uint32_t *more = slot_scratch, *less = more + layers, *ignored = less + layers;
    uint32_t moves = 0;

    for (; moves < MOVES_MAX; moves++) {
        uint32_t taker, donor;

        mp_fixed_point_split(point, slots, now_ns, retained);
        for (uint32_t l = 0; l < layers; l++) {
            more[l] = slots[l] + step <= point->experts ? slots[l] + step : point->experts;
            less[l] = slots[l] > step ? slots[l] - step : slots[l];
        }
        mp_fixed_point_split(point, more, more_ns, ignored);
        mp_fixed_point_split(point, less, less_ns, ignored);
        taker = find_taker(point, step, slots, now_ns, more_ns);
        donor = find_donor(point, step, slots, now_ns, less_ns, taker);
        if (taker == layers || donor == layers)
            break;
        slots[taker] += step;
        slots[donor] -= step;
        mp_fixed_point_split(point, slots, then_ns, ignored);
        if (sum_of(then_ns, layers) >= sum_of(now_ns, layers)) {
            slots[taker] -= step;
            slots[donor] += step;
            break;
        }
    }
    mp_fixed_point_split(point, slots, now_ns, retained);
    return moves;
}
