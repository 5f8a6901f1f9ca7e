/* Model directories of a few hundred bytes; see tiny_model.h. */
#include "tests/model/tiny_model.h"

#include <inttypes.h>
#include <stdarg.h>

#include "tests/support/test.h"

static const char *const configs[] = {
    [TINY_MIXTRAL] = "{\"architectures\":[\"MixtralForCausalLM\"],\"vocab_size\":6,"
                     "\"hidden_size\":8,\"intermediate_size\":5,\"num_hidden_layers\":2,"
                     "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,"
                     "\"num_local_experts\":3,\"num_experts_per_tok\":2,"
                     "\"max_position_embeddings\":64}",
    [TINY_QWEN2] = "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"vocab_size\":6,"
                   "\"hidden_size\":8,\"intermediate_size\":7,\"moe_intermediate_size\":5,"
                   "\"shared_expert_intermediate_size\":6,\"num_hidden_layers\":2,"
                   "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"num_experts\":3,"
                   "\"num_experts_per_tok\":2,\"mlp_only_layers\":[0]}",
    [TINY_QWEN3] = "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":6,"
                   "\"hidden_size\":8,\"moe_intermediate_size\":5,\"num_hidden_layers\":2,"
                   "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,"
                   "\"num_experts\":3,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
                   "\"tie_word_embeddings\":true}",
};

static void add(struct tiny_model *model, uint32_t dims, uint64_t a, uint64_t b, uint64_t c,
                const char *format, ...) __attribute__((format(printf, 6, 7)));

static void add(struct tiny_model *model, uint32_t dims, uint64_t a, uint64_t b, uint64_t c,
                const char *format, ...)
{
    struct tiny_tensor *tensor = &model->tensors[model->count];
    va_list args;

    CHECK(model->count < sizeof(model->tensors) / sizeof(model->tensors[0]));
    *tensor = (struct tiny_tensor){
        .dtype = "F32", .dims = dims, .shape = { a, b, c }, .first = (double)model->count
    };
    va_start(args, format);
    vsnprintf(tensor->name, sizeof(tensor->name), format, args);
    va_end(args);
    model->count++;
}

static void add_ffn(struct tiny_model *model, unsigned layer, const char *block, uint64_t channels)
{
    add(model, 2, channels, 8, 0, "model.layers.%u.%s.gate_proj.weight", layer, block);
    add(model, 2, channels, 8, 0, "model.layers.%u.%s.up_proj.weight", layer, block);
    add(model, 2, 8, channels, 0, "model.layers.%u.%s.down_proj.weight", layer, block);
}

static void add_experts(struct tiny_model *model, unsigned layer, enum tiny_form form)
{
    const char *block = form == TINY_MIXTRAL ? "block_sparse_moe" : "mlp";

    add(model, 2, 3, 8, 0, "model.layers.%u.%s.gate.weight", layer, block);
    if (form == TINY_QWEN3_FUSED || form == TINY_MIXTRAL_FUSED) {
        add(model, 3, 3, 10, 8, "model.layers.%u.mlp.experts.gate_up_proj", layer);
        add(model, 3, 3, 8, 5, "model.layers.%u.mlp.experts.down_proj", layer);
        return;
    }
    for (unsigned i = 0; i < 3; i++) {
        char name[32];

        snprintf(name, sizeof(name), "mlp.experts.%u", i);
        if (form != TINY_MIXTRAL) {
            add_ffn(model, layer, name, 5);
            continue;
        }
        add(model, 2, 5, 8, 0, "model.layers.%u.block_sparse_moe.experts.%u.w1.weight", layer, i);
        add(model, 2, 5, 8, 0, "model.layers.%u.block_sparse_moe.experts.%u.w3.weight", layer, i);
        add(model, 2, 8, 5, 0, "model.layers.%u.block_sparse_moe.experts.%u.w2.weight", layer, i);
    }
}

static void add_layer(struct tiny_model *model, unsigned layer, enum tiny_form form)
{
    static const struct {
        const char *name;
        uint64_t rows;
    } projections[] = { { "q", 8 }, { "k", 4 }, { "v", 4 }, { "o", 8 } };
    const bool qwen3 = form == TINY_QWEN3 || form == TINY_QWEN3_FUSED;

    add(model, 1, 8, 0, 0, "model.layers.%u.input_layernorm.weight", layer);
    for (size_t i = 0; i < 4; i++) {
        add(model, 2, projections[i].rows, 8, 0, "model.layers.%u.self_attn.%s_proj.weight", layer,
            projections[i].name);
        if (form == TINY_QWEN2 && i < 3)
            add(model, 1, projections[i].rows, 0, 0, "model.layers.%u.self_attn.%s_proj.bias",
                layer, projections[i].name);
    }
    if (qwen3) {
        add(model, 1, 4, 0, 0, "model.layers.%u.self_attn.q_norm.weight", layer);
        add(model, 1, 4, 0, 0, "model.layers.%u.self_attn.k_norm.weight", layer);
    }
    add(model, 1, 8, 0, 0, "model.layers.%u.post_attention_layernorm.weight", layer);
    if (form == TINY_QWEN2 && layer == 0) {
        add_ffn(model, layer, "mlp", 7);
        return;
    }
    if (form == TINY_QWEN2) {
        add_ffn(model, layer, "mlp.shared_expert", 6);
        add(model, 2, 1, 8, 0, "model.layers.%u.mlp.shared_expert_gate.weight", layer);
    }
    add_experts(model, layer, form);
}

void tiny_model_make(struct tiny_model *model, enum tiny_form form)
{
    model->count = 0;
    add(model, 2, 6, 8, 0, "model.embed_tokens.weight");
    for (unsigned i = 0; i < 2; i++)
        add_layer(model, i, form);
    add(model, 1, 8, 0, 0, "model.norm.weight");
    if (form != TINY_QWEN3 && form != TINY_QWEN3_FUSED)
        add(model, 2, 6, 8, 0, "lm_head.weight");
}

struct tiny_tensor *tiny_model_find(struct tiny_model *model, const char *name)
{
    for (size_t i = 0; i < model->count; i++) {
        if (strcmp(model->tensors[i].name, name) == 0)
            return &model->tensors[i];
    }
    CHECK(!"the model has this tensor");
    return NULL;
}

static FILE *open_file(const char *dir, const char *name)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    return file;
}

void tiny_write_text(const char *dir, const char *name, const char *text)
{
    FILE *file = open_file(dir, name);

    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
}

void tiny_write_config(const char *dir, enum tiny_form form)
{
    tiny_write_text(dir, "config.json",
                    configs[form == TINY_QWEN3_FUSED     ? TINY_QWEN3
                            : form == TINY_MIXTRAL_FUSED ? TINY_MIXTRAL
                                                         : form]);
}

double tiny_value(const struct tiny_tensor *tensor, uint64_t i)
{
    return tensor->first + (double)i / 64;
}

static uint64_t element_bytes(const char *dtype)
{
    return strcmp(dtype, "F32") == 0                                 ? 4
           : strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2
                                                                     : 1;
}

static uint64_t element_count(const struct tiny_tensor *tensor)
{
    uint64_t count = 1;

    for (uint32_t i = 0; i < tensor->dims; i++)
        count *= tensor->shape[i];
    return count;
}

/* float32 bits of v in a shorter type; the values of the tests need no rounding. */
static uint32_t encode(const char *dtype, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (strcmp(dtype, "BF16") == 0)
        return bits >> 16;
    if (strcmp(dtype, "F16") == 0) {
        const uint32_t sign = bits >> 31 << 15, exponent = bits >> 23 & 0xff;

        if (exponent == 0xff)
            return sign | 0x7c00 | (bits & 0x7fffff ? 1 : 0);
        return exponent < 113 ? sign : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff);
    }
    return bits;
}

void tiny_write_shard(const char *dir, const char *name, const struct tiny_model *model,
                      size_t begin, size_t end, unsigned pad)
{
    char *header = NULL;
    size_t header_bytes = 0;
    FILE *file = open_file(dir, name), *text = open_memstream(&header, &header_bytes);
    uint64_t offset = 0;

    CHECK(text != NULL);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    for (size_t i = begin; i < end; i++) {
        const struct tiny_tensor *tensor = &model->tensors[i];
        const uint64_t bytes = element_count(tensor) * element_bytes(tensor->dtype);

        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name, tensor->dtype);
        for (uint32_t d = 0; d < tensor->dims; d++)
            fprintf(text, "%s%" PRIu64, d > 0 ? "," : "", tensor->shape[d]);
        fprintf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + bytes);
        offset += bytes;
    }
    fprintf(text, "}%*s", (int)pad, "");
    CHECK(fclose(text) == 0);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)header_bytes >> (8 * i) & 0xff), file);
    CHECK(fwrite(header, 1, header_bytes, file) == header_bytes);
    free(header);
    for (size_t i = begin; i < end; i++) {
        const struct tiny_tensor *tensor = &model->tensors[i];

        for (uint64_t e = 0; e < element_count(tensor); e++) {
            const uint32_t bits = encode(tensor->dtype, tiny_value(tensor, e));

            CHECK(fwrite(&bits, element_bytes(tensor->dtype), 1, file) == 1);
        }
    }
    CHECK(fclose(file) == 0);
}
