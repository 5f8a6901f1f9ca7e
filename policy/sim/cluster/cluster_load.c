/*
 * Routing of several domains: by the shares of the cluster's file, or made up: in domain d an
 * expert of a layer has the probability exp(s z) / sum, z = sqrt(c) a + sqrt(1 - c) b: a belongs to
 * the expert, b to it and the domain, both normally distributed; c is `common`. s is `skew`, for
 * each layer more or less of it by up to `variation`. A token takes k different experts, one after
 * the other. Tokens are independent.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/builtins.h"
#include "policy/sim/cluster/cluster_int.h"
#include "vmm/base/error.h"

#define TRIES 64

double mp_cluster_uniform(uint64_t *random)
{
    return (double)((mp_policy_mix((*random)++) >> 11) + 1) / 9007199254740992.0;
}

/* Box and Muller. */
static double normal(uint64_t *random)
{
    const double radius = sqrt(-2 * log(mp_cluster_uniform(random)));

    return radius * cos(6.283185307179586 * mp_cluster_uniform(random));
}

static double *sums_of(const struct mp_cluster_load *load, uint32_t domain, uint32_t layer)
{
    return load->sums + ((size_t)domain * load->layers + layer) * load->experts;
}

enum mp_status mp_cluster_load_init(struct mp_cluster_load *load, const struct mp_cluster *cluster,
                                    uint64_t seed)
{
    const uint32_t layers = (uint32_t)cluster->model.layers;
    const uint32_t experts = (uint32_t)cluster->model.experts;
    const uint32_t domains = 2 * (uint32_t)cluster->domains;
    const double own = sqrt(1 - cluster->common), all = sqrt(cluster->common);

    *load = (struct mp_cluster_load){ .layers = layers,
                                      .experts = experts,
                                      .top_k = (uint32_t)cluster->model.top_k,
                                      .domains = domains / 2 };
    load->sums = calloc((size_t)domains * layers * experts, sizeof(*load->sums));
    if (load->sums == NULL)
        return mp_fail_no_memory("domains", (uint64_t)domains * layers * experts * 8);
    for (uint32_t d = 0; d < domains; d++) {
        for (uint32_t l = 0; l < layers; l++) {
            uint64_t shared = mp_policy_mix(seed ^ mp_policy_mix(l));
            uint64_t random = mp_policy_mix(shared ^ mp_policy_mix(d + 1000003));
            const double spread = 2 * mp_cluster_uniform(&shared) - 1;
            const double skew = cluster->skew * (1 + cluster->variation * spread);
            double *sums = sums_of(load, d, l), sum = 0;

            for (uint32_t e = 0; e < experts; e++) {
                const double z = all * normal(&shared) + own * normal(&random);

                sum += cluster->shares != NULL
                           ? cluster->shares[((size_t)d * layers + l) * experts + e]
                           : exp(skew * z);
                sums[e] = sum;
            }
            for (uint32_t e = 0; e < experts; e++)
                sums[e] /= sum;
        }
    }
    return MP_OK;
}

void mp_cluster_load_fini(struct mp_cluster_load *load)
{
    free(load->sums);
    load->sums = NULL;
}

double mp_cluster_share(const struct mp_cluster_load *load, uint32_t domain, uint32_t layer,
                        uint32_t expert)
{
    const double *sums = sums_of(load, domain, layer);

    return expert > 0 ? sums[expert] - sums[expert - 1] : sums[0];
}

/* The first expert whose running sum reaches a random number. */
static uint32_t draw(const double *sums, uint32_t experts, uint64_t *random)
{
    const double at = mp_cluster_uniform(random);
    uint32_t low = 0, high = experts - 1;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (sums[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_in(const uint32_t *list, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == value)
            return true;
    }
    return false;
}

/* k different experts; where one has nearly all the probability, the next by number follow. */
static void choose_token(const struct mp_cluster_load *load, const double *sums, uint64_t *random,
                         uint32_t *chosen)
{
    for (uint32_t r = 0; r < load->top_k; r++) {
        uint32_t e = draw(sums, load->experts, random);

        for (uint32_t tries = 1; tries < TRIES && is_in(chosen, r, e); tries++)
            e = draw(sums, load->experts, random);
        while (is_in(chosen, r, e))
            e = (e + 1) % load->experts;
        chosen[r] = e;
    }
}

void mp_cluster_choose(const struct mp_cluster_load *load, uint32_t domain, uint32_t layer,
                       uint32_t count, uint64_t *random, uint32_t *tokens, uint32_t *chosen)
{
    const double *sums = sums_of(load, domain, layer);
    const uint32_t drawn = mp_cluster_drawn(count);

    memset(tokens, 0, load->experts * sizeof(*tokens));
    for (uint32_t t = 0; t < drawn; t++) {
        uint32_t *own = chosen + (size_t)t * load->top_k;

        choose_token(load, sums, random, own);
        for (uint32_t r = 0; r < load->top_k; r++)
            tokens[own[r]] += mp_cluster_stands_for(count, t);
    }
}
