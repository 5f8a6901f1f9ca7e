#ifndef MP_TESTS_CONVERT_H
#define MP_TESTS_CONVERT_H

/* Conversions to GGUF files, and a model whose rows are blocks of 256 elements. */
#include <sys/stat.h>

#include "engine/convert/convert.h"
#include "tests/model/gguf/twins.h"
#include "tests/model/rewrite.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static struct mp_pool *pool;

static inline struct mp_convert_config job(const char *model, const char *out, const char *type)
{
    return (struct mp_convert_config){
        .model = model, .out = out, .type = type, .force = true, .pool = pool
    };
}

static inline struct mp_convert_report convert(const char *model, const char *out, const char *type)
{
    const struct mp_convert_config config = job(model, out, type);
    struct mp_convert_report report;

    if (mp_convert(&config, &report) != MP_OK) {
        fprintf(stderr, "%s: %s\n", model, mp_error_last()->text);
        exit(1);
    }
    return report;
}

static inline void check_refused(const struct mp_convert_config *config, enum mp_status status,
                                 const char *code, const char *part)
{
    struct mp_convert_report report;

    mp_error_clear();
    CHECK_EQ(mp_convert(config, &report), status);
    CHECK_STR(mp_error_last()->code, code);
    if (strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "%s\n", mp_error_last()->text);
        exit(1);
    }
}

static const char config_256[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":160,\"hidden_size\":256,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":32,"
    "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":256,"
    "\"norm_topk_prob\":true,\"max_position_embeddings\":512,\"tie_word_embeddings\":false}";

static float bad; /* the first element of every matrix, unless 0 */

static inline void fill(struct rewritten *tensor)
{
    const char *name = tensor->name;
    const bool kv = strstr(name, "k_proj") != NULL || strstr(name, "v_proj") != NULL;
    const bool heads = strstr(name, "q_norm") != NULL || strstr(name, "k_norm") != NULL;
    uint32_t lcg = 1;
    size_t count;
    float *data;

    if (tensor->dims == 1) {
        tensor->shape[0] = heads ? 32 : 256;
    } else {
        tensor->shape[1] = 256;
        if (strstr(name, "embed") == NULL && strstr(name, "lm_head") == NULL &&
            strstr(name, "mlp.gate.") == NULL)
            tensor->shape[0] = kv ? 128 : 256;
    }
    count = tensor->shape[0] * (tensor->dims == 1 ? 1 : tensor->shape[1]);
    data = malloc(count * sizeof(*data));
    CHECK(data != NULL);
    for (const char *c = name; *c != '\0'; c++)
        lcg = (lcg ^ (unsigned char)*c) * 16777619;
    for (size_t i = 0; i < count; i++) {
        lcg = lcg * 1664525 + 1013904223;
        data[i] = ((float)(lcg >> 8) * 0x1p-24f - 0.5f) * 0.2f;
    }
    if (tensor->dims > 1 && bad != 0)
        data[0] = bad;
    free(tensor->data);
    tensor->data = data;
    tensor->bytes = count * sizeof(*data);
    tensor->dtype = "F32";
}

static inline const char *model_256(const char *name)
{
    const char *model = in_tmpdir(name);

    rewrite_model(QWEN3, model, config_256, fill);
    return model;
}

static inline char *bytes_of(const char *path, size_t *bytes_p)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    char *bytes;

    CHECK(file != NULL && fstat(fileno(file), &info) == 0);
    *bytes_p = (size_t)info.st_size;
    bytes = malloc(*bytes_p);
    CHECK(bytes != NULL);
    CHECK_EQ(fread(bytes, 1, *bytes_p, file), *bytes_p);
    fclose(file);
    return bytes;
}

static inline void check_same_file(const char *a, const char *b)
{
    size_t bytes[2];
    char *data[2] = { bytes_of(a, &bytes[0]), bytes_of(b, &bytes[1]) };

    CHECK_EQ(bytes[0], bytes[1]);
    CHECK(memcmp(data[0], data[1], bytes[0]) == 0);
    free(data[0]);
    free(data[1]);
}

#endif
