/*
 * `moepager eval --tokens-ahead`: how well the experts of the next tokens are guessed from each
 * source, by distance, and what that is worth in hits against knowing the next four tokens. The
 * text is run once, with its own tokens; what is learned of ids is learned on the way. All numbers
 * are of the second half.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/eval.h"
#include "policy/lookahead/bound.h"
#include "policy/lookahead/heat.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define FARTHEST MP_DRAFT_MAX
#define PERFECT 4u /* tokens */

enum source { IDS, DRAFTS, MODEL, LAST, SOURCES };

static const char *const source_names[SOURCES] = { "ids", "drafts", "draft model", "last" };
static const char *const json_names[SOURCES] = { "ids", "drafts", "draft_model", "last" };
static const uint32_t shares[] = { 10, 25 };

/* A source of ids, what it guesses after a token, and how many of its guesses were right. */
struct guesses {
    struct mp_draft_source *source; /* NULL: none */
    struct mp_draft draft;
    uint64_t right[FARTHEST + 1];
};

struct lookahead {
    struct mp_eval *eval;
    struct mp_routed_text text;
    uint32_t *chosen;                    // (tokens, layers, top_k), owned
    uint32_t seen;                       /* tokens whose last layer has run */
    double found[SOURCES][FARTHEST + 1]; /* experts */
    uint64_t wanted[FARTHEST + 1];
    struct guesses guesses[SOURCES]; /* of DRAFTS and MODEL */
    struct mp_bound bounds[2][3];
};

static void on_layer(void *ctx, const struct mp_layer_seen *seen)
{
    struct lookahead *la = ctx;
    const struct mp_routed_text *text = &la->text;

    if (la->seen < text->tokens)
        memcpy(la->chosen + ((size_t)la->seen * text->layers + seen->layer) * text->top_k,
               seen->experts, text->top_k * sizeof(uint32_t));
    la->seen += seen->layer + 1 == text->layers;
}

static enum mp_status run_text(struct lookahead *la)
{
    const struct mp_observer observer = { .ctx = la, .layer = on_layer };
    struct mp_eval *eval = la->eval;
    const struct mp_model_config *m = &eval->session.model;
    const struct mp_profile policies = eval->session.engine_config.policies;
    enum mp_status status;

    la->text = (struct mp_routed_text){
        m->moe_layers, m->experts, m->experts_per_token, m->vocab, (uint32_t)eval->ids.count,
        eval->ids.ids, NULL
    };
    la->chosen = calloc((size_t)la->text.tokens * m->moe_layers, m->experts_per_token * 4);
    if (la->chosen == NULL)
        return mp_fail_no_memory("the routing", (size_t)la->text.tokens * m->moe_layers * 4);
    la->text.chosen = la->chosen;
    status = mp_session_renew(&eval->session, &policies, &observer);
    if (status == MP_OK)
        status = mp_eval_run(eval, "lookahead", NULL, NULL);
    if (la->seen < la->text.tokens)
        la->text.tokens = la->seen;
    if (status == MP_OK && la->text.tokens < 4)
        status =
            mp_fail(MP_ERR_CONFIG, "E_USAGE",
                    "--tokens-ahead: the text has %u tokens, it needs at least 4", la->text.tokens);
    return status;
}

/* How many of the experts of a token are in list(count)? */
static uint32_t overlap(const struct mp_routed_text *text, const uint32_t *chosen,
                        const uint32_t *list, uint32_t count)
{
    uint32_t found = 0;

    for (uint32_t r = 0; r < text->top_k; r++) {
        for (uint32_t i = 0; i < count; i++)
            found += list[i] == chosen[r];
    }
    return found;
}

static uint32_t found_by_id(const struct lookahead *la, const struct mp_heat *heat, uint32_t id,
                            uint32_t layer, const uint32_t *chosen)
{
    float share[4096] = { 0 };
    uint32_t list[64];

    mp_heat_add(heat, layer, id, 1, share);
    return overlap(&la->text, chosen, list,
                   mp_heat_list(share, la->text.experts, 1e-6f, la->text.top_k, list));
}

/* What is known when token t begins, of token t + d. */
static void measure_token(struct lookahead *la, const struct mp_heat *heat, uint32_t t, uint32_t d)
{
    const struct mp_routed_text *text = &la->text;

    for (uint32_t l = 0; l < text->layers; l++) {
        const uint32_t *chosen = text->chosen + ((size_t)(t + d) * text->layers + l) * text->top_k;
        const uint32_t *last = text->chosen + ((size_t)(t - 1) * text->layers + l) * text->top_k;

        la->wanted[d] += text->top_k;
        la->found[IDS][d] += found_by_id(la, heat, text->id[t + d], l, chosen);
        la->found[LAST][d] += overlap(text, chosen, last, text->top_k);
    }
    for (unsigned s = DRAFTS; s <= MODEL; s++) {
        struct guesses *guesses = &la->guesses[s];

        if (d == 0 || d > guesses->draft.count)
            continue;
        guesses->right[d] += guesses->draft.token[d - 1] == text->id[t + d];
        for (uint32_t l = 0; l < text->layers; l++)
            la->found[s][d] +=
                found_by_id(la, heat, guesses->draft.token[d - 1], l,
                            text->chosen + ((size_t)(t + d) * text->layers + l) * text->top_k);
    }
}

/* A source guesses what follows token t, if that is in the half that counts. A model sees no more
 * than the one that chose the experts: its own window. */
static enum mp_status guess(struct lookahead *la, enum source s, uint32_t t)
{
    struct guesses *guesses = &la->guesses[s];
    struct mp_draft_source *source = guesses->source;

    if (source == NULL)
        return MP_OK;
    if (s == MODEL && t % la->eval->args->window == 0)
        source->ops->begin(source);
    source->ops->push(source, 0, la->text.id[t]);
    return t < la->text.tokens / 2 ? MP_OK
                                   : source->ops->guess(source, 0, FARTHEST, &guesses->draft);
}

static enum mp_status measure_all(struct lookahead *la, struct mp_heat *heat)
{
    const struct mp_routed_text *text = &la->text;
    enum mp_status status = MP_OK;

    for (uint32_t t = 0; t < text->tokens; t++) {
        for (unsigned s = DRAFTS; s <= MODEL && status == MP_OK; s++)
            status = guess(la, (enum source)s, t);
        if (status != MP_OK)
            return status;
        for (uint32_t d = 0; t >= text->tokens / 2 && d <= FARTHEST && t + d < text->tokens; d++)
            measure_token(la, heat, t, d);
        for (uint32_t l = 0; l < text->layers; l++)
            mp_heat_learn(heat, l, text->id[t],
                          text->chosen + ((size_t)t * text->layers + l) * text->top_k);
    }
    return MP_OK;
}

static enum mp_status measure_sources(struct lookahead *la)
{
    const struct mp_routed_text *text = &la->text;
    const struct mp_heat_shape shape = { text->layers, text->experts, text->top_k, text->vocab };
    struct mp_draft_source *lookup;
    struct mp_heat *heat;
    enum mp_status status = mp_heat_create(&shape, &heat);

    if (status != MP_OK)
        return status;
    status = mp_draft_lookup_create(1, text->tokens, &lookup);
    if (status == MP_OK) {
        la->guesses[DRAFTS].source = lookup;
        la->guesses[MODEL].source = la->eval->session.draft_model;
        status = measure_all(la, heat);
        lookup->ops->destroy(lookup);
    }
    mp_heat_destroy(heat);
    return status;
}

static enum mp_status measure_bounds(struct lookahead *la)
{
    const struct mp_routed_text *text = &la->text;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t share = shares[i] * text->layers * text->experts / 100;
        const uint32_t slots = share > 2 * text->top_k ? share : 2 * text->top_k + 1;

        for (unsigned known = 0; known < 3 && status == MP_OK; known++)
            status = mp_lookahead_bound(text, slots, (enum mp_known)known, PERFECT,
                                        text->tokens / 2, &la->bounds[i][known]);
    }
    return status;
}

static double part(double found, uint64_t wanted)
{
    return wanted > 0 ? found / (double)wanted : 0;
}

static bool is_there(const struct lookahead *la, unsigned s)
{
    return s != MODEL || la->guesses[MODEL].source != NULL;
}

/* Share of the ids `d` tokens ahead that a source guesses right. */
static double right_part(const struct lookahead *la, unsigned s, uint32_t d)
{
    return part((double)la->guesses[s].right[d], la->wanted[d] / la->text.top_k / la->text.layers);
}

static void print_sources(const struct lookahead *la)
{
    printf("%u tokens, the second half measured\n\nexperts found among as many guessed, by tokens "
           "ahead\n%-11s",
           la->text.tokens, "");
    for (uint32_t d = 0; d <= FARTHEST; d++)
        printf(" %6u", d);
    for (unsigned s = 0; s < SOURCES; s++) {
        if (is_there(la, s))
            printf("\n%-11s", source_names[s]);
        for (uint32_t d = 0; d <= FARTHEST && is_there(la, s); d++)
            printf(" %4.1f %%", 100 * part(la->found[s][d], la->wanted[d]));
    }
    for (unsigned s = DRAFTS; s <= MODEL && is_there(la, s); s++) {
        printf("\n%-11s", s == DRAFTS ? "right draft" : "right model");
        for (uint32_t d = 0; d <= FARTHEST; d++)
            printf(" %4.1f %%", 100 * right_part(la, s, d));
    }
}

static void print_text(const struct lookahead *la)
{
    print_sources(la);
    printf("\n\nhits, simulated, and experts read per token\n%-8s %18s %18s %18s %10s\n", "slots",
           "nothing known", "next 4 tokens", "ids, read ahead", "of gain");
    for (uint32_t i = 0; i < 2; i++) {
        const struct mp_bound *b = la->bounds[i];

        printf("%5u %% ", shares[i]);
        for (unsigned k = 0; k < 3; k++)
            printf(" %8.1f %% %7.1f", 100 * b[k].hits, b[k].reads);
        if (b[1].hits > b[0].hits)
            printf(" %8.0f %%\n", 100 * (b[2].hits - b[0].hits) / (b[1].hits - b[0].hits));
        else
            printf(" %10s\n", "-");
    }
    printf(
        "ids: of the token itself, as if it were known at any distance; drafts: ids guessed from "
        "the text;\n%slast: the experts of the token before; right: share of guessed ids\n",
        is_there(la, MODEL) ? "draft model: ids guessed by that model; " : "");
}

static void print_json(const struct lookahead *la)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_eval_json_head(la->eval, &json);
    for (unsigned s = 0; s < SOURCES; s++) {
        if (!is_there(la, s))
            continue;
        mp_json_array_begin(&json, json_names[s]);
        for (uint32_t d = 0; d <= FARTHEST; d++)
            mp_json_put_f64(&json, NULL, part(la->found[s][d], la->wanted[d]));
        mp_json_array_end(&json);
    }
    for (unsigned s = DRAFTS; s <= MODEL && is_there(la, s); s++) {
        mp_json_array_begin(&json, s == DRAFTS ? "right_drafts" : "right_draft_model");
        for (uint32_t d = 0; d <= FARTHEST; d++)
            mp_json_put_f64(&json, NULL, right_part(la, s, d));
        mp_json_array_end(&json);
    }
    mp_json_array_begin(&json, "hits");
    for (uint32_t i = 0; i < 2; i++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_u64(&json, "percent", shares[i]);
        mp_json_put_f64(&json, "nothing", la->bounds[i][MP_KNOWN_NOTHING].hits);
        mp_json_put_f64(&json, "perfect", la->bounds[i][MP_KNOWN_PERFECT].hits);
        mp_json_put_f64(&json, "ids", la->bounds[i][MP_KNOWN_HEAT].hits);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

enum mp_status mp_eval_lookahead(struct mp_eval *eval)
{
    struct lookahead *la = calloc(1, sizeof(*la));
    enum mp_status status;

    if (la == NULL)
        return mp_fail_no_memory("the lookahead", sizeof(*la));
    la->eval = eval;
    status = mp_eval_open(eval, 1);
    if (status == MP_OK && eval->session.model.experts_per_token > 64)
        status = mp_fail(MP_ERR_UNSUPPORTED, "E_USAGE",
                         "--tokens-ahead: a token has more than 64 experts");
    if (status == MP_OK)
        status = run_text(la);
    if (status == MP_OK)
        status = measure_sources(la);
    if (status == MP_OK)
        status = measure_bounds(la);
    if (status == MP_OK && eval->args->json)
        print_json(la);
    else if (status == MP_OK)
        print_text(la);
    free(la->chosen);
    free(la);
    return status == MP_OK ? mp_printed(status) : status;
}
