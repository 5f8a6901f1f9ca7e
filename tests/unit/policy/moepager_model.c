/*
 * The files of the library's tests, and what all of them do with a pager.
 */
#include "tests/unit/policy/moepager_model.h"

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

struct test_model model;

void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

void make_model(void)
{
    uint32_t state = 12345;

    for (size_t i = 0; i < sizeof(model.gate); i++)
        model.gate[i] = (unsigned char)((state = state * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < sizeof(model.down); i++)
        model.down[i] = (unsigned char)((state = state * 1664525u + 1013904223u) >> 24);
    snprintf(model.gate_path, sizeof(model.gate_path), "%s/gate", test_tmpdir());
    snprintf(model.down_path, sizeof(model.down_path), "%s/down", test_tmpdir());
    write_file(model.gate_path, model.gate, sizeof(model.gate));
    write_file(model.down_path, model.down, sizeof(model.down));
    model.files[0] = model.gate_path;
    model.files[1] = model.down_path;
    for (uint32_t u = 0; u < COUNT; u++) {
        model.pieces[u][0] = (struct moepager_piece){ 0, 17 + (uint64_t)u * GATE, GATE };
        model.pieces[u][1] = (struct moepager_piece){ 1, (uint64_t)(COUNT - 1 - u) * DOWN, DOWN };
    }
}

struct moepager_config make_config(uint64_t budget_bytes)
{
    struct moepager_config config = MOEPAGER_CONFIG_INIT;

    config.files = model.files;
    config.file_count = 2;
    config.layers = LAYERS;
    config.experts = EXPERTS;
    config.top_k = 3;
    config.pieces = &model.pieces[0][0];
    config.pieces_per_expert = 2;
    config.budget_bytes = budget_bytes;
    return config;
}

struct moepager_plan plan_of(uint64_t budget_bytes)
{
    const struct moepager_config config = make_config(budget_bytes);
    struct moepager_plan plan;

    CHECK_EQ(moepager_plan(&config, &plan), MOEPAGER_OK);
    return plan;
}

struct moepager *open_model(struct moepager_config config)
{
    struct moepager *pager = NULL;

    if (moepager_open(&config, &pager) != MOEPAGER_OK)
        fprintf(stderr, "%s: %s\n", moepager_error_code(), moepager_error_text());
    CHECK(pager != NULL);
    return pager;
}

void check_bytes(uint32_t unit, const struct moepager_ready *ready)
{
    CHECK_EQ(memcmp(ready->pieces[0], model.gate + 17 + unit * GATE, GATE), 0);
    CHECK_EQ(memcmp(ready->pieces[1], model.down + (COUNT - 1 - unit) * DOWN, DOWN), 0);
}

/* Every expert of the layer comes exactly once, with its own bytes. */
void run_layer(struct moepager *pager, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct moepager_ready ready;
    unsigned seen = 0;

    CHECK_EQ(moepager_begin(pager, layer, experts, NULL, count), MOEPAGER_OK);
    for (;;) {
        CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_OK);
        if (ready.index == MOEPAGER_NONE)
            break;
        CHECK(ready.index < count);
        CHECK(!(seen & 1u << ready.index));
        seen |= 1u << ready.index;
        check_bytes(layer * EXPERTS + experts[ready.index], &ready);
        CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_OK);
    }
    CHECK_EQ(seen, (1u << count) - 1);
    CHECK_EQ(moepager_end(pager), MOEPAGER_OK);
}
