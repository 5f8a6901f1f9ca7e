/*
 * make_twin MODEL ARCH OUT.gguf [CHANGES]: a model directory as a GGUF file of floats, as `repack`
 * writes it, for tests/system/families/llama_test.py. CHANGES: keys of config.json, as JSON.
 */
#include "tests/model/gguf/convert.h"
#include "tests/model/gguf/twin_runs.h"

/* llama.cpp has delta networks only where heads of values are as long as those of keys: the models
 * lose a third of the values, and keep the numbers that fit. */
static void shorten(struct rewritten *tensor)
{
    static const struct {
        const char *part;
        unsigned dim;
        uint64_t size;
    } shorter[] = {
        { "in_proj_qkvz", 0, 96 },       { "in_proj_qkv.", 0, 64 },    { "in_proj_z", 0, 32 },
        { "linear_attn.conv1d", 0, 64 }, { "linear_attn.norm", 0, 8 }, { "linear_attn.out", 1, 32 },
    };

    rewrite_as_f32(tensor);
    for (size_t i = 0; i < MP_ARRAY_LEN(shorter); i++) {
        if (strstr(tensor->name, shorter[i].part) == NULL)
            continue;
        tensor->bytes = tensor->bytes / tensor->shape[shorter[i].dim] * shorter[i].size;
        tensor->shape[shorter[i].dim] = shorter[i].size;
    }
}

int main(int argc, char **argv)
{
    static const char *const values[] = { "\"linear_value_head_dim\": 12",
                                          "\"linear_value_head_dim\": 8", NULL };
    /* llama.cpp rounds the bounds of yarn to whole dimensions, which gpt-oss does not. */
    static const char *const positions[] = { "\"yarn\"", "\"default\"", NULL };
    /* Its second layer has no experts, which GGUF files of the family cannot say. */
    static const char *const first_layer[] = { "\"num_hidden_layers\": 3",
                                               "\"num_hidden_layers\": 1", "[\n    1\n  ]", "[]",
                                               NULL };
    const struct mp_pool_config one = { .threads = 1 };
    const char *model = in_tmpdir("wide");
    char *changed;

    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: make_twin MODEL ARCH OUT.gguf [CHANGES]\n");
        return 2;
    }
    changed = argc == 5 ? twin_changed_config(argv[1], argv[4]) : NULL;
    if (strcmp(argv[2], "gpt-oss") == 0)
        rewrite_model(argv[1], model, twin_config(argv[1], positions), rewrite_as_f32);
    else if (strcmp(argv[2], "qwen2moe") == 0)
        rewrite_model(argv[1], model, twin_config(argv[1], first_layer), rewrite_as_f32);
    else if (strcmp(argv[2], "qwen3next") == 0 || strcmp(argv[2], "qwen35moe") == 0)
        rewrite_model(argv[1], model, twin_config(argv[1], values), shorten);
    else
        rewrite_model(argv[1], model, changed, rewrite_as_f32);
    free(changed);
    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    convert(model, argv[3], "f32");
    mp_pool_destroy(pool);
    return 0;
}
