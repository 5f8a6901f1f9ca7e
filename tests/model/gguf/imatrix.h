#ifndef MP_TESTS_IMATRIX_H
#define MP_TESTS_IMATRIX_H

/* Importance matrices in the older form, right or wrong as the caller says. */
#include "tests/model/gguf/convert.h"

/* Of the model with rows of 256 the first layer alone: it has all that matters here. */
static inline const char *model_of_a_layer(const char *name)
{
    const char *layers = strstr(config_256, "layers\":4"), *model = in_tmpdir(name);
    char text[1024];

    CHECK(layers != NULL);
    snprintf(text, sizeof(text), "%.*s1%s", (int)(layers + 8 - config_256), config_256, layers + 9);
    rewrite_model(QWEN3, model, text, fill);
    return model;
}

#define WEIGHED "blk.0.attn_q.weight"

/* The older form: one entry of 256 numbers for one tensor, unless changed. */
struct list {
    uint32_t count, length, calls, values;
    const char *name;
    float first;
    size_t cut_bytes; /* from the end */
};

static const struct list whole = { 1, sizeof(WEIGHED) - 1, 2, 256, WEIGHED, 1, 0 };

static inline const char *write_list(const struct list *list)
{
    const char *path = in_tmpdir("weights.dat");
    char bytes[2048];
    float values[256];
    size_t used = 0;
    FILE *file = fopen(path, "wb");

    for (size_t i = 0; i < 256; i++)
        values[i] = i % 16 == 3 ? 100 : 1;
    values[0] = list->first;
    memcpy(bytes, &list->count, 4);
    memcpy(bytes + 4, &list->length, 4);
    memcpy(bytes + 8, list->name, strlen(list->name));
    used = 8 + strlen(list->name);
    memcpy(bytes + used, &list->calls, 4);
    memcpy(bytes + used + 4, &list->values, 4);
    memcpy(bytes + used + 8, values, sizeof(values));
    used += 8 + sizeof(values) - list->cut_bytes;
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, used, file), used);
    CHECK_EQ(fclose(file), 0);
    return path;
}

#endif
