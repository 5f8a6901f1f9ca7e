/* Running models as directories and as GGUF files; see twin_runs.h. */
#include "tests/model/gguf/twin_runs.h"

#include <jansson.h>

#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/support/test.h"

float *twin_logits(const char *model, uint64_t budget_bytes, size_t *bytes_p)
{
    static const int32_t tokens[PROMPT + STEPS] = { 5, 66, 33, 61, 42, 8, 64, 12, 7, 60, 11 };
    static const int32_t lens[1] = { PROMPT };
    struct harness_options options = harness_defaults(model);
    struct harness h;
    float *logits;

    options.budget_bytes = budget_bytes;
    harness_open(&options, &h);
    *bytes_p = (size_t)h.model.vocab * (STEPS + 1) * sizeof(*logits);
    logits = malloc(*bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    CHECK_EQ(mp_engine_counters(h.engine)->invalid_decisions, 0);
    harness_close(&h);
    return logits;
}

/* Everything resident, the least that a budget can be, and something between. */
static void check_budgets(const char *model, const float *want, size_t bytes)
{
    const struct harness_options options = harness_defaults(model);
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    const uint64_t budgets[] = { UINT64_MAX, plan.smallest_bytes,
                                 (plan.smallest_bytes + plan.full_bytes) / 2 };

    for (size_t i = 0; i < MP_ARRAY_LEN(budgets); i++) {
        size_t more;
        float *got = twin_logits(model, budgets[i], &more);

        CHECK_EQ(more, bytes);
        if (memcmp(got, want, bytes) != 0) {
            fprintf(stderr, "%s: other logits at budget %zu\n", model, i);
            exit(1);
        }
        free(got);
    }
}

/* Routers, and what switches shared experts, become F32, as converters write them: products of
 * other types add in another order. */
static void widen_routers(struct rewritten *tensor)
{
    const char *const tails[] = { ".gate.weight", "shared_expert_gate.weight",
                                  "router.layer.weight", "mlp.router.weight",
                                  "router.proj.weight" };
    const size_t length = strlen(tensor->name);

    for (size_t i = 0; i < MP_ARRAY_LEN(tails); i++) {
        const size_t tail = strlen(tails[i]);

        if (length >= tail && strcmp(tensor->name + length - tail, tails[i]) == 0)
            rewrite_as_f32(tensor);
    }
}

/* A model's config.json, in which texts are replaced, in pairs, where they first occur. */
const char *twin_config(const char *model, const char *const *pairs)
{
    static char text[4096], out[4096];
    char path[PATH_BYTES];
    FILE *file;

    snprintf(path, sizeof(path), "%s/config.json", model);
    file = fopen(path, "r");
    CHECK(file != NULL);
    out[fread(out, 1, sizeof(out) - 1, file)] = '\0';
    fclose(file);
    for (; pairs[0] != NULL; pairs += 2) {
        const char *found;

        memcpy(text, out, sizeof(text));
        found = strstr(text, pairs[0]);
        CHECK(found != NULL);
        snprintf(out, sizeof(out), "%.*s%s%s", (int)(found - text), text, pairs[1],
                 found + strlen(pairs[0]));
    }
    return out;
}

char *twin_changed_config(const char *model, const char *changes)
{
    char path[PATH_BYTES], *text;
    json_t *root, *more = json_loads(changes, 0, NULL);

    snprintf(path, sizeof(path), "%s/config.json", model);
    root = json_load_file(path, 0, NULL);
    CHECK(root != NULL && more != NULL);
    CHECK_EQ(json_object_update(root, more), 0);
    text = json_dumps(root, 0);
    CHECK(text != NULL);
    json_decref(more);
    json_decref(root);
    return text;
}

void twin_directory(const char *source, const char *out, const char *config)
{
    rewrite_model(source, out, config, widen_routers);
}

void twin_check(const char *source, const char *arch, const char *config,
                const struct twin_how *how)
{
    static unsigned count;
    char name[32];
    struct to_gguf job = plain(NULL, arch, in_tmpdir("twin.gguf"));
    size_t bytes;
    float *want;

    snprintf(name, sizeof(name), "twin%u", count++);
    job.model = in_tmpdir(name);
    if (how != NULL) {
        job.whole_latent = how->whole_latent;
        job.fused = how->fused;
        job.divisors = how->divisors;
    }
    twin_directory(source, job.model, config);
    want = twin_logits(job.model, UINT64_MAX, &bytes);
    to_gguf(&job);
    check_budgets(job.path, want, bytes);
    job.align_bytes = 4096;
    job.version = 2;
    to_gguf(&job);
    check_budgets(job.path, want, bytes);
    job.align_bytes = 8;
    job.parts = 3;
    to_gguf(&job);
    check_budgets(in_tmpdir("twin-00002-of-00003.gguf"), want, bytes);
    free(want);
}
