/*
 * What ranks compare at the start: a number over all that decides a model's logits, except that of
 * experts, which are on disk, samples are taken.
 */
#include <string.h>

#include "engine/cluster/hash.h"
#include "engine/cluster/rank.h"

/* Experts of which samples are taken, and bytes of each of their pieces. */
#define SAMPLES 4096u
#define SAMPLE_BYTES 64u

/* Members without the gaps between them. */
#define HASH(member) mp_hash_add(hash, &(member), sizeof(member))

static void hash_positions(uint64_t *hash, const struct mp_model_config *m)
{
    const struct mp_rope *r = &m->rope;

    HASH(m->rope_theta), HASH(m->rotary_dim), HASH(r->kind), HASH(r->factor), HASH(r->slow);
    HASH(r->fast), HASH(r->original), HASH(r->magnitude), HASH(r->truncate), HASH(r->factors);
    HASH(r->long_magnitude), HASH(m->window), HASH(m->windowed);
}

static void hash_attention(uint64_t *hash, const struct mp_model_config *m)
{
    HASH(m->heads), HASH(m->kv_heads), HASH(m->head_dim), HASH(m->wide), HASH(m->wide_kv_heads);
    HASH(m->wide_head_dim), HASH(m->kv_rank), HASH(m->q_rank), HASH(m->nope_dim);
    HASH(m->value_dim), HASH(m->latent_eps), HASH(m->delta), HASH(m->short_conv), HASH(m->linear);
    HASH(m->q_gate), HASH(m->attention_scale), HASH(m->qkv_bias), HASH(m->o_bias), HASH(m->sinks);
    HASH(m->qk_norm), HASH(m->qk_norm_rows);
}

static void hash_experts_of(uint64_t *hash, const struct mp_model_config *m)
{
    HASH(m->experts), HASH(m->experts_per_token), HASH(m->expert_ffn), HASH(m->shared_ffn);
    HASH(m->dense_ffn), HASH(m->moe_layers), HASH(m->is_moe), HASH(m->activation);
    HASH(m->act_alpha), HASH(m->act_limit), HASH(m->router_bias), HASH(m->transposed_experts);
    HASH(m->mxfp4), HASH(m->expert_bias), HASH(m->norm_topk), HASH(m->router), HASH(m->mixer_eps);
    HASH(m->select_bias), HASH(m->groups), HASH(m->groups_used), HASH(m->group_best);
    HASH(m->routed_scale);
}

static void hash_config(uint64_t *hash, const struct mp_model_config *m)
{
    HASH(m->vocab), HASH(m->hidden), HASH(m->layers), HASH(m->norm_eps), HASH(m->embed_scale);
    HASH(m->residual_scale), HASH(m->logit_scale), HASH(m->head_bias), HASH(m->norm_bias);
    HASH(m->tied);
    hash_positions(hash, m);
    hash_attention(hash, m);
    hash_experts_of(hash, m);
}

/* All weights but experts. */
static void hash_resident(uint64_t *hash, const struct mp_weights *weights, uint64_t hidden)
{
    for (size_t i = 0; i < weights->part_count; i++)
        mp_hash_add(hash, (const char *)weights->block + weights->parts[i].offset_bytes,
                    weights->parts[i].bytes);
    /* Some families add 1 to norms when they are read. */
    mp_hash_add(hash, weights->final_norm.w, hidden * sizeof(float));
}

/* Of each piece of an expert: some bytes at a place that differs from expert to expert. */
static enum mp_status hash_sample(uint64_t *hash, const struct mp_engine_config *config,
                                  uint32_t number)
{
    const struct mp_unit *unit = &config->weights->units[number];
    unsigned char sample[SAMPLE_BYTES];
    enum mp_status status = MP_OK;

    for (uint32_t p = 0; p < unit->piece_count && status == MP_OK; p++) {
        const struct mp_piece *piece = &unit->pieces[p];
        const uint64_t bytes = piece->bytes < SAMPLE_BYTES ? piece->bytes : SAMPLE_BYTES;
        uint64_t place = number;

        mp_hash_word(&place, p);
        status =
            mp_files_read(config->files, piece->file,
                          piece->offset_bytes + place % (piece->bytes - bytes + 1), bytes, sample);
        if (status == MP_OK)
            mp_hash_add(hash, sample, bytes);
    }
    return status;
}

static enum mp_status hash_experts(uint64_t *hash, const struct mp_engine_config *config)
{
    const struct mp_weights *weights = config->weights;
    const uint32_t step = 1 + (weights->unit_count - 1) / SAMPLES;
    const uint32_t experts = config->model->moe_layers * config->model->experts;
    enum mp_status status = MP_OK;

    HASH(weights->transposed), HASH(weights->apart);
    for (uint32_t i = 0; i < experts; i++)
        HASH(weights->unit_types[i]);
    for (uint32_t u = 0; u < weights->unit_count && status == MP_OK; u++) {
        const struct mp_unit *unit = &weights->units[u];

        for (uint32_t p = 0; p < unit->piece_count; p++)
            mp_hash_word(hash, unit->pieces[p].bytes);
        if (u % step == 0)
            status = hash_sample(hash, config, u);
    }
    return status;
}

enum mp_status mp_model_hash(const struct mp_engine_config *config, uint64_t *hash_p)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    enum mp_status status;

    hash_config(&hash, config->model);
    hash_resident(&hash, config->weights, config->model->hidden);
    status = hash_experts(&hash, config);
    *hash_p = hash;
    return status;
}
