#ifndef MP_TEST_MOEPAGER_MODEL_H
#define MP_TEST_MOEPAGER_MODEL_H

#include <moepager.h>

/*
 * Two files of random bytes stand for a model of 4 layers x 6 experts, each expert in two pieces,
 * one in each file and at unaligned places.
 */
#define LAYERS 4u
#define EXPERTS 6u
#define COUNT (LAYERS * EXPERTS)
#define GATE 5000u
#define DOWN 3001u

struct test_model {
    unsigned char gate[17 + COUNT * GATE], down[COUNT * DOWN];
    char gate_path[4200], down_path[4200];
    const char *files[2];
    struct moepager_piece pieces[COUNT][2];
};

extern struct test_model model;

void write_file(const char *path, const void *bytes, size_t count);
void make_model(void);
struct moepager_config make_config(uint64_t budget_bytes);
struct moepager_plan plan_of(uint64_t budget_bytes);
struct moepager *open_model(struct moepager_config config);
void check_bytes(uint32_t unit, const struct moepager_ready *ready);

/* Every expert of the layer comes exactly once, with its own bytes. */
void run_layer(struct moepager *pager, uint32_t layer, const uint32_t *experts, uint32_t count);

#endif
