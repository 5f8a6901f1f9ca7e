/*
 * Scores that the engine computes for predictors, each against a plain computation of its own, on
 * models with and without a shared expert.
 */
#include <fcntl.h>
#include <math.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "tests/model/harness.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define TOKENS 6
#define SCORES_MAX 4096
#define WIDTH_MAX 512

struct seen {
    struct mp_engine *engine;
    void (*check)(const struct seen *seen, uint32_t layer, uint32_t target, const float *scores);
    float guess[2][SCORES_MAX]; /* of even and odd layers */
    float *k, *v; /* copies of the caches from before the batch; NULL: not looked at */
    unsigned predictions, equal;
};

static struct seen seen;
static const struct mp_calibration_data *calibration;
static const struct mp_llapor *llapor;

static size_t cache_floats(const struct mp_engine *engine)
{
    const struct mp_model_config *m = engine->config.model;

    return (size_t)engine->config.sequences * engine->config.ctx * m->kv_heads * m->head_dim;
}

static void on_predicted(void *ctx, uint32_t layer, uint32_t target, uint32_t tokens,
                         const float *scores)
{
    struct seen *s = ctx;
    const size_t floats = cache_floats(s->engine), at = s->engine->layer_of[target] * floats;
    const uint8_t *k_cache = s->engine->state.k_cache, *v_cache = s->engine->state.v_cache;

    CHECK_EQ(target, layer + 1);
    CHECK(tokens * s->engine->shape.experts <= SCORES_MAX);
    memcpy(s->guess[target % 2], scores, tokens * s->engine->shape.experts * sizeof(float));
    s->predictions++;
    if (s->k != NULL) {
        CHECK(memcmp(s->k + at, k_cache + at * sizeof(float), floats * sizeof(float)) == 0);
        CHECK(memcmp(s->v + at, v_cache + at * sizeof(float), floats * sizeof(float)) == 0);
    }
    if (s->check != NULL)
        s->check(s, layer, target, scores);
}

static bool is_near(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!(fabsf(a[i] - b[i]) < 2e-6f))
            return false;
    }
    return true;
}

static void on_layer(void *ctx, const struct mp_layer_seen *layer)
{
    struct seen *s = ctx;
    const size_t count = (size_t)layer->batch->count * s->engine->shape.experts;

    if (layer->layer > 0)
        s->equal += is_near(s->guess[layer->layer % 2], s->engine->scores, count);
}

static const struct mp_observer observer = { .ctx = &seen,
                                             .layer = on_layer,
                                             .predicted = on_predicted };

static void open_model(struct harness *h, const char *model, const char *predictor)
{
    struct harness_options options = harness_defaults(model);

    options.policies.policy[MP_POLICY_PREDICT] = predictor;
    options.policies.policy[MP_POLICY_PREFETCH] = "top";
    options.observer = &observer;
    options.calibration = calibration;
    options.llapor = llapor;
    harness_open(&options, h);
    seen = (struct seen){ .engine = h->engine };
}

/* Tokens first.. of one sequence, in one batch. */
static void feed(struct harness *h, uint32_t first, uint32_t count)
{
    uint32_t token[TOKENS], sequence[TOKENS] = { 0 }, position[TOKENS];
    uint8_t want[TOKENS] = { 0 };
    const struct mp_batch batch = {
        .count = count, .token = token, .sequence = sequence, .position = position, .want = want
    };
    const float *logits;

    for (uint32_t i = 0; i < count; i++) {
        token[i] = 3 + 7 * (first + i) % 50;
        position[i] = first + i;
    }
    CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
}

static const char *const models[] = { "tests/data/models/qwen2moe-tiny",
                                      "tests/data/models/mixtral-tiny", "models/tiny-moe" };

/* With everything resident nothing is absent: the prediction is the next layer's own result, and
 * the cache of keys and values is as it was, to the bit. */
static void partial_with_all_experts_is_the_next_layer(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++) {
        struct harness h;
        size_t floats;

        open_model(&h, models[m], "partial");
        floats = cache_floats(h.engine) * h.model.layers;
        feed(&h, 0, TOKENS); /* brings in what the second time needs */
        seen.equal = seen.predictions = 0;
        seen.k = malloc(floats * sizeof(float));
        seen.v = malloc(floats * sizeof(float));
        CHECK(seen.k != NULL && seen.v != NULL);
        memcpy(seen.k, h.engine->state.k_cache, floats * sizeof(float));
        memcpy(seen.v, h.engine->state.v_cache, floats * sizeof(float));
        feed(&h, 0, TOKENS);
        CHECK_EQ(seen.predictions, h.model.moe_layers - 1);
        CHECK_EQ(seen.equal, seen.predictions);
        free(seen.k);
        free(seen.v);
        harness_close(&h);
    }
}

/* What is not there counts as zero, so the first guess of a cold engine is not exact, unless its
 * thread waits for its turn until all reads have come: it may try again. */
static void partial_without_experts_is_a_guess(void)
{
    bool guessed = false;

    for (unsigned i = 0; i < 50 && !guessed; i++) {
        struct harness h;

        open_model(&h, models[1], "partial");
        feed(&h, 0, TOKENS);
        CHECK(seen.predictions > 0);
        guessed = seen.equal < seen.predictions;
        for (size_t e = 0; e < TOKENS * h.model.experts; e++)
            CHECK(isfinite(seen.guess[1][e]));
        harness_close(&h);
    }
    CHECK(guessed);
}

/* softmax(router x), plainly. */
static void plain_router(const struct mp_engine *engine, uint32_t layer, const double *x,
                         double *scores)
{
    const struct mp_view *router = &engine->config.weights->layers[layer].router;
    float row[WIDTH_MAX];
    double sum = 0;

    CHECK(router->cols <= WIDTH_MAX);
    for (size_t e = 0; e < router->rows; e++) {
        mp_kernels_ref.convert(
            row, (const char *)router->data + mp_wtype_bytes(router->type, e * router->cols),
            router->type, router->cols);
        scores[e] = 0;
        for (size_t i = 0; i < router->cols; i++)
            scores[e] += (double)row[i] * x[i];
    }
    for (size_t e = 0; e < router->rows; e++)
        sum += exp(scores[e]);
    for (size_t e = 0; e < router->rows; e++)
        scores[e] = exp(scores[e]) / sum;
}

static void check_residual(const struct seen *s, uint32_t layer, uint32_t target,
                           const float *scores)
{
    const size_t H = s->engine->config.model->hidden, E = s->engine->shape.experts;
    double x[WIDTH_MAX], want[WIDTH_MAX];

    for (size_t t = 0; t < s->engine->tokens; t++) {
        for (size_t i = 0; i < H; i++)
            x[i] = (double)s->engine->state.xn[t * H + i] +
                   (double)calibration->residual[layer * H + i];
        plain_router(s->engine, s->engine->layer_of[target], x, want);
        for (size_t e = 0; e < E; e++)
            CHECK(fabs(want[e] - (double)scores[t * E + e]) < 1e-5);
    }
}

static struct mp_model_id id_of(const char *model)
{
    struct mp_checkpoint *checkpoint;
    struct mp_model_config config;
    struct mp_model_id id;

    CHECK_EQ(mp_checkpoint_open(model, &checkpoint), MP_OK);
    CHECK_EQ(mp_model_config_load(checkpoint, &config), MP_OK);
    id = (struct mp_model_id){ .layers = config.moe_layers,
                               .experts = config.experts,
                               .top_k = config.experts_per_token,
                               .hidden = config.hidden };
    mp_checkpoint_close(checkpoint);
    return id;
}

static void residual_is_added_before_the_next_router(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++) {
        const struct mp_model_id id = id_of(models[m]);
        struct mp_calibration_data *data;
        struct harness h;
        float *residual;

        CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
        residual = data->block + (data->residual - data->block);
        for (uint32_t i = 0; i < id.layers * id.hidden; i++)
            residual[i] = (float)((int)(i * 37 % 101) - 50) / 200;
        calibration = data;
        open_model(&h, models[m], "residual");
        seen.check = check_residual;
        feed(&h, 0, TOKENS);
        feed(&h, TOKENS, 1);
        CHECK_EQ(seen.predictions, 2 * (h.model.moe_layers - 1));
        harness_close(&h);
        calibration = NULL;
        mp_calibration_destroy(data);
    }
}

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

/* y = W x + b of a network's part. */
static void plain_linear(const struct mp_llapor_linear *linear, const double *x, double *y)
{
    const float *w = linear->weight.data;

    for (size_t r = 0; r < linear->weight.rows; r++) {
        y[r] = (double)linear->bias[r];
        for (size_t c = 0; c < linear->weight.cols; c++)
            y[r] += (double)w[r * linear->weight.cols + c] * x[c];
    }
}

static void check_llapor(const struct seen *s, uint32_t layer, uint32_t target, const float *scores)
{
    const struct mp_llapor_net *net = &llapor->nets[layer];
    const size_t H = s->engine->config.model->hidden, E = s->engine->shape.experts;
    const size_t R = s->engine->shape.top_k, P = net->inputs, D = net->width;
    double x[WIDTH_MAX], f[WIDTH_MAX], h[WIDTH_MAX], a[WIDTH_MAX], b[WIDTH_MAX], g[WIDTH_MAX];

    (void)target;
    for (size_t t = 0; t < s->engine->tokens; t++) {
        const uint32_t *chosen = s->engine->predict.chosen + t * R;
        const float *weights = s->engine->predict.weights + t * R;
        double total = 0;

        for (size_t i = 0; i < H; i++)
            x[i] = (double)s->engine->state.xn[t * H + i];
        memset(f, 0, sizeof(f));
        plain_linear(&net->pca, x, f);
        for (size_t r = 0; r < R; r++)
            total += (double)weights[r];
        for (size_t r = 0; r < R; r++) {
            f[P + chosen[r]] = (double)weights[r] / total;
            f[P + E + chosen[r]] = 1;
        }
        plain_linear(&net->in, f, h);
        for (size_t i = 0; i < D; i++)
            h[i] = gelu(h[i]);
        if (net->deep) {
            plain_linear(&net->a, h, a);
            for (size_t i = 0; i < D; i++)
                a[i] = gelu(a[i]);
            plain_linear(&net->b, a, b);
            plain_linear(&net->gate, f, g);
            for (size_t i = 0; i < D; i++)
                h[i] += b[i] / (1 + exp(-g[i]));
        }
        plain_linear(&net->out, h, a);
        for (size_t e = 0; e < E; e++)
            CHECK(fabs(1 / (1 + exp(-a[e])) - (double)scores[t * E + e]) < 1e-5);
    }
}

/* Weights that differ everywhere and keep numbers small. */
static struct mp_llapor_linear make_linear(size_t rows, size_t cols)
{
    float *weight = malloc(rows * cols * sizeof(float)), *bias = malloc(rows * sizeof(float));
    static unsigned salt;

    CHECK(weight != NULL && bias != NULL);
    for (size_t i = 0; i < rows * cols; i++)
        weight[i] = (float)((int)((i + ++salt) * 2654435761u % 201) - 100) / 400;
    for (size_t i = 0; i < rows; i++)
        bias[i] = (float)((int)((i + ++salt) * 40503u % 41) - 20) / 100;
    return (struct mp_llapor_linear){ { weight, MP_WTYPE_F32, rows, cols }, bias };
}

static void free_linear(struct mp_llapor_linear *linear)
{
    free((void *)linear->weight.data);
    free((void *)linear->bias);
}

static void llapor_is_its_network(void)
{
    const struct mp_model_id id = id_of("models/tiny-moe");
    struct mp_llapor_net nets[16] = { 0 };
    struct mp_llapor made = {
        .count = id.layers - 1, .nets = nets, .inputs_max = 9, .width_max = 20
    };
    struct harness h;

    for (uint32_t i = 0; i < made.count; i++) {
        const size_t P = 5 + i % 5, D = 16 + i % 5, E = id.experts;

        nets[i] = (struct mp_llapor_net){ .inputs = (uint32_t)P,
                                          .width = (uint32_t)D,
                                          .deep = i % 2 == 1,
                                          .pca = make_linear(P, id.hidden),
                                          .in = make_linear(D, P + 2 * E),
                                          .a = make_linear(D, D),
                                          .b = make_linear(D, D),
                                          .gate = make_linear(D, P),
                                          .out = make_linear(E, D) };
    }
    llapor = &made;
    open_model(&h, "models/tiny-moe", "llapor");
    seen.check = check_llapor;
    feed(&h, 0, TOKENS);
    feed(&h, TOKENS, 1);
    CHECK_EQ(seen.predictions, 2 * (h.model.moe_layers - 1));
    harness_close(&h);
    llapor = NULL;
    for (uint32_t i = 0; i < made.count; i++) {
        struct mp_llapor_linear *parts[] = { &nets[i].pca, &nets[i].in,   &nets[i].a,
                                             &nets[i].b,   &nets[i].gate, &nets[i].out };

        for (size_t p = 0; p < MP_ARRAY_LEN(parts); p++)
            free_linear(parts[p]);
    }
}

#define FIXTURE "tests/data/llapor/"

/* As tools/train/llapor_fixture.py says. */
static const struct mp_model_id fixture_id = {
    .layers = 4, .experts = 8, .top_k = 2, .hidden = 40, .router_hash = 0x0123456789abcdef
};

static struct npy fixture(const char *name, size_t count)
{
    struct npy array;
    char path[256];

    snprintf(path, sizeof(path), FIXTURE "%s.npy", name);
    CHECK(npy_read(path, &array));
    CHECK_EQ(array.count, count);
    return array;
}

/* Scores of networks with random weights, as the code that trains them computes them in PyTorch. */
static void llapor_is_what_pytorch_computes(void)
{
    const size_t E = fixture_id.experts, H = fixture_id.hidden, R = fixture_id.top_k;
    struct npy x = fixture("input", TOKENS * H), experts = fixture("experts", TOKENS * R);
    struct npy weights = fixture("weights", TOKENS * R), want = fixture("scores", 3 * TOKENS * E);
    struct mp_llapor *loaded;
    float got[TOKENS * 8];
    struct harness h;

    CHECK_EQ(mp_llapor_load(AT_FDCWD, FIXTURE "llapor.safetensors", &fixture_id, &loaded), MP_OK);
    CHECK(!loaded->nets[0].deep && loaded->nets[1].deep && !loaded->nets[2].deep);
    llapor = loaded;
    open_model(&h, "tests/data/models/qwen3moe-tiny", "llapor");
    h.engine->tokens = TOKENS;
    memcpy(h.engine->state.xn, x.f32, TOKENS * H * sizeof(float));
    h.engine->predict.chosen = (const uint32_t *)experts.i32;
    h.engine->predict.weights = weights.f32;
    for (uint32_t layer = 0; layer < 3; layer++) {
        mp_engine_scores_llapor(h.engine, layer, got);
        CHECK(npy_error(got, want.f32 + layer * TOKENS * E, TOKENS * E) < 2e-6);
    }
    harness_close(&h);
    llapor = NULL;
    mp_llapor_destroy(loaded);
    npy_free(&x);
    npy_free(&experts);
    npy_free(&weights);
    npy_free(&want);
}

/* A copy of the fixture in which `to`, of the same length, stands for `from`; with NaN as the last
 * number, or without what follows byte `cut` if that is not 0. */
static const char *damaged(const char *from, const char *to, bool nan, size_t cut)
{
    static char path[4200], all[1 << 16];
    FILE *file = fopen(FIXTURE "llapor.safetensors", "rb");
    size_t count;
    char *at;

    CHECK(file != NULL);
    count = fread(all, 1, sizeof(all), file);
    fclose(file);
    CHECK(count > cut && count < sizeof(all));
    at = memmem(all, count, from, strlen(from));
    CHECK(at != NULL && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    if (nan)
        memcpy(all + count - sizeof(float), &(float){ NAN }, sizeof(float));
    snprintf(path, sizeof(path), "%s/llapor.safetensors", test_tmpdir());
    file = fopen(path, "wb");
    CHECK(file != NULL);
    count = cut > 0 ? cut : count;
    CHECK_EQ(fwrite(all, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
    return path;
}

static void damaged_predictors_are_refused(void)
{
    static const struct {
        const char *from, *to;
        bool nan;
        size_t cut;
        const char *code, *part;
    } cases[] = {
        { "llapor 1", "llapor 2", false, 0, "E_SIDECAR", "llapor 2" },
        { "layer.2.pca.weight", "layer.9.pca.weight", false, 0, "E_SIDECAR",
          "no network for layer 2" },
        { "layer.2.a.bias", "layer.2.z.bias", false, 0, "E_SIDECAR", "layer.2.a.bias" },
        { "[19, 19]", "[361, 1]", false, 0, "E_SIDECAR", "layer.2.a.weight" },
        { "[5, 40]", "[8, 25]", false, 0, "E_SIDECAR", "layer.1.pca.weight" },
        { "llapor 1", "llapor 1", true, 0, "E_SIDECAR", "nan" },
        { "llapor 1", "llapor 1", false, 12000, "E_ST_END", "cut short" },
        { "0123456789abcdef", "0123456789abcdee", false, 0, "E_SIDECAR_MODEL", "router" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const char *path = damaged(cases[i].from, cases[i].to, cases[i].nan, cases[i].cut);
        struct mp_llapor *loaded = NULL;

        mp_error_clear();
        CHECK_EQ(mp_llapor_load(AT_FDCWD, path, &fixture_id, &loaded), MP_ERR_MODEL);
        CHECK(loaded == NULL);
        CHECK_STR(mp_error_last()->code, cases[i].code);
        if (strstr(mp_error_last()->text, cases[i].part) == NULL)
            CHECK_STR(mp_error_last()->text, cases[i].part);
    }
}

int main(void)
{
    RUN(partial_with_all_experts_is_the_next_layer);
    RUN(partial_without_experts_is_a_guess);
    RUN(residual_is_added_before_the_next_router);
    RUN(llapor_is_its_network);
    RUN(llapor_is_what_pytorch_computes);
    RUN(damaged_predictors_are_refused);
    return 0;
}
