/*
 * tools/gpu/layer.c has the launches that the engine makes: for the shapes of two bundled models,
 * kernels and blocks of a step's graph are those of its layers, its embedding and its head.
 */
#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "tools/gpu/layer.h"
#include "vmm/base/error.h"

#define TOKENS_MAX 8
#define OUTSIDE 3 /* embedding, rows that want logits, head */

static void feed(struct harness *h, uint32_t tokens)
{
    uint32_t token[TOKENS_MAX], sequence[TOKENS_MAX], position[TOKENS_MAX] = { 0 };
    uint8_t want[TOKENS_MAX];
    const struct mp_batch batch = {
        .count = tokens, .token = token, .sequence = sequence, .position = position, .want = want
    };
    const float *logits;

    for (uint32_t t = 0; t < tokens; t++) {
        token[t] = t * 37 % h->model.vocab;
        sequence[t] = t;
        want[t] = 1;
    }
    if (mp_forward(h->engine, &batch, &logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

static struct layer_shape shape_of(const struct harness *h, uint32_t tokens, uint32_t ctx)
{
    const struct mp_model_config *m = &h->model;

    return (struct layer_shape){
        .hidden = m->hidden,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .experts = h->engine->shape.experts,
        .top_k = h->engine->shape.top_k,
        .channels = (uint32_t)mp_ffn_slices_channels(&h->engine->config.weights->slices, 0),
        .vocab = m->vocab,
        .tokens = tokens,
        .ctx = ctx,
        .positions = 1,
        .type = h->engine->device->weights.layers[0].router.type,
        .kv_type = MP_WTYPE_F32,
        .processors = (uint32_t)mp_gpu_device(h->engine->device->gpu)->processors,
    };
}

static uint64_t blocks_of(enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(kernel, params);

    return (uint64_t)grid.x * grid.y * grid.z;
}

/* Of embedding and wanted rows, a thread for each element of either. */
static uint64_t outside(const struct layer_shape *s)
{
    const struct mp_cuda_embed embed = { .width = s->hidden, .tokens = s->tokens };
    const struct layer_at nowhere = { .weights = 0 };
    const struct layer_launch head = layer_head(s, &nowhere, 0);

    return 2 * blocks_of(MP_CUDA_KERNEL_embed, &embed) + blocks_of(head.kernel, &head.params);
}

static void compare(const char *model, uint32_t tokens, uint32_t ctx)
{
    struct harness_options options = harness_defaults(model);
    const struct layer_at nowhere = { .part = 16 }; /* not 0: attention may be in parts */
    struct layer_launch list[LAYER_LAUNCHES];
    struct layer_shape shape;
    struct fakecuda_work work;
    uint64_t blocks;
    struct harness h;

    options.backend = "cuda";
    options.sequences = options.tokens_max = options.wanted_max = tokens;
    options.ctx = ctx;
    options.graphs = true;
    options.policies.profile = "lru";
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    for (unsigned i = 0; i < 7; i++)
        feed(&h, tokens);
    fake_api.reset();
    feed(&h, tokens);
    CHECK_EQ(fake_api.calls("cuGraphLaunch"), 1);
    fake_api.work(&work);

    shape = shape_of(&h, tokens, ctx);
    layer_launches(&shape, &nowhere, list);
    blocks = outside(&shape);
    for (unsigned i = 0; i < LAYER_LAUNCHES; i++) {
        CHECK(list[i].kernel < MP_CUDA_KERNEL_COUNT);
        blocks += h.model.layers * blocks_of(list[i].kernel, &list[i].params);
    }
    CHECK_EQ(work.kernels, OUTSIDE + (uint64_t)LAYER_LAUNCHES * h.model.layers);
    CHECK_EQ(work.blocks, blocks);
    harness_close(&h);
}

static void as_the_engine_launches_them(void)
{
    compare("tests/data/models/qwen3moe-tiny", 1, 64);
    compare("tests/data/models/qwen3moe-tiny", 8, 64);
    compare("models/tiny-moe", 1, 64);
}

/* Attention in parts. */
static void in_a_long_context(void)
{
    compare("models/tiny-moe", 1, 2048);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1);
    find_fake();
    RUN(as_the_engine_launches_them);
    RUN(in_a_long_context);
    return 0;
}
