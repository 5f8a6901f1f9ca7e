/*
 * The file of a calibration: what is written is read back, and what is damaged or of another model
 * is refused by name. What a trace says of its experts, and the rule for layer groups.
 */
#include "engine/calibrate/calibrate.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/forward/forced_routing.h"
#include "policy/record/trace.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static const struct mp_model_id id = {
    .layers = 4, .experts = 3, .top_k = 2, .hidden = 5, .router_hash = 0x123456789abcdef0
};

static char path[4200];

static void fill(struct mp_calibration_data *data)
{
    const size_t count = id.layers * id.experts * (1 + 3 * id.experts);

    for (size_t i = 0; i < count; i++)
        data->block[i] = (float)(i % 97) / 97;
    for (size_t i = 0; i < id.layers * id.hidden; i++)
        data->block[count + i] = (float)i - 7.5f;
    for (uint32_t l = 0; l < id.layers; l++)
        data->groups[l] = l / 2;
}

static void write_one(void)
{
    struct mp_calibration_data *data;

    snprintf(path, sizeof(path), "%s/calibration.safetensors", test_tmpdir());
    CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
    fill(data);
    CHECK_EQ(mp_calibration_write(path, data, &id, 99), MP_OK);
    mp_calibration_destroy(data);
}

static void what_is_written_is_read_back(void)
{
    struct mp_calibration_data *want, *got;
    const size_t count =
        id.layers * id.experts * (1 + 3 * id.experts) + (size_t)id.layers * id.hidden;

    write_one();
    CHECK_EQ(mp_calibration_create(&id, &want), MP_OK);
    fill(want);
    CHECK_EQ(mp_calibration_load(AT_FDCWD, path, &id, &got), MP_OK);
    CHECK(memcmp(got->block, want->block, count * sizeof(float)) == 0);
    CHECK(memcmp(got->groups, want->groups, id.layers * sizeof(uint32_t)) == 0);
    CHECK_EQ(got->residual - got->block, want->residual - want->block);
    mp_calibration_destroy(want);
    mp_calibration_destroy(got);
}

/* Whoever has a trace knows neither hidden size nor routers. */
static void a_trace_takes_it_by_its_shape(void)
{
    struct mp_calibration_data *got = NULL;

    write_one();
    CHECK_EQ(mp_calibration_load_for(path, id.layers, id.experts, &got), MP_OK);
    CHECK(got->facts.hot[5] > 0.051f && got->facts.hot[5] < 0.052f); /* 5 / 97 */
    CHECK_EQ(got->facts.group[2], 1);
    CHECK(got->residual == NULL);
    mp_calibration_destroy(got);
    CHECK_EQ(mp_calibration_load_for(path, id.layers + 1, id.experts, &got), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_SIDECAR_MODEL");
    CHECK(got == NULL);
    CHECK_EQ(mp_calibration_load_for("auto", 1, 1, &got), MP_OK);
    CHECK(got == NULL);
}

static void refused(const struct mp_model_id *model, const char *code, const char *part)
{
    struct mp_calibration_data *data = NULL;

    mp_error_clear();
    CHECK_EQ(mp_calibration_load(AT_FDCWD, path, model, &data), MP_ERR_MODEL);
    CHECK(data == NULL);
    CHECK_STR(mp_error_last()->code, code);
    if (strstr(mp_error_last()->text, part) == NULL)
        CHECK_STR(mp_error_last()->text, part);
}

static void another_model_is_refused_by_name(void)
{
    struct mp_model_id other = id;

    write_one();
    other.router_hash++;
    refused(&other, "E_SIDECAR_MODEL", "its router is 123456789abcdef0");
    other = id;
    other.experts = 7;
    refused(&other, "E_SIDECAR_MODEL", "experts is 3, this model's is 7");
    other = id;
    other.hidden = 6;
    refused(&other, "E_SIDECAR_MODEL", "hidden");
}

static long find(const char *text, char *bytes, size_t count)
{
    const char *at = memmem(bytes, count, text, strlen(text));

    CHECK(at != NULL);
    return at - bytes;
}

/* Replace `from` by `to`, of the same length, or with NULL put a number in place of the last. */
static void damage(const char *from, const char *to, float last)
{
    static char bytes[65536];
    FILE *file = fopen(path, "r+b");
    size_t count;

    CHECK(file != NULL);
    count = fread(bytes, 1, sizeof(bytes), file);
    if (to != NULL)
        memcpy(bytes + find(from, bytes, count), to, strlen(to));
    else
        memcpy(bytes + count - sizeof(last), &last, sizeof(last));
    rewind(file);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

static void damaged_files_are_refused(void)
{
    write_one();
    damage("calibration 1", "calibration 9", 0);
    refused(&id, "E_SIDECAR", "calibration 9");
    write_one();
    damage("\"residual\"", "\"residuum\"", 0);
    refused(&id, "E_SIDECAR", "no tensor 'residual'");
    write_one();
    damage("", NULL, 3); /* the last layer's group is 1 */
    refused(&id, "E_SIDECAR", "group of layer 3");
    write_one();
    damage("", NULL, NAN);
    refused(&id, "E_SIDECAR", "nan");
    write_one();
    CHECK_EQ(truncate(path, 700), 0);
    refused(&id, "E_ST_END", "cut short");
    CHECK_EQ(truncate(path, 4), 0);
    refused(&id, "E_ST_SHORT", "4 bytes");
}

/* Both ends of a range belong to it; a cosine may be off by rounding. */
static void numbers_at_the_ends_are_accepted(void)
{
    static const float alike[] = { 1.001f, -1.001f, 1.002f, -1.002f };
    const size_t at = (size_t)id.layers * id.experts * (1 + 2 * id.experts);
    struct mp_calibration_data *data;

    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
        fill(data);
        data->block[0] = 1;
        data->block[1] = 0;
        data->block[at] = alike[i];
        CHECK_EQ(mp_calibration_write(path, data, &id, 99), MP_OK);
        mp_calibration_destroy(data);
        if (i >= 2) {
            refused(&id, "E_SIDECAR", "need -1.001 to 1.001");
            continue;
        }
        CHECK_EQ(mp_calibration_load(AT_FDCWD, path, &id, &data), MP_OK);
        CHECK(data->facts.similarity[0] == alike[i] && data->facts.hot[0] == 1);
        mp_calibration_destroy(data);
    }
}

/* The first group is 0. */
/* FNV-1a over the routers of MoE layers, in order; other layers have none. */
static uint64_t hash_of(float first, float second, bool first_is_moe)
{
    static float routers[2][2];
    static struct mp_layer_weights layers[2];
    static struct mp_model_config config;
    const struct mp_weights weights = { .layers = layers };
    struct mp_model_id made;

    for (int l = 0; l < 2; l++) {
        routers[l][0] = routers[l][1] = l == 0 ? first : second;
        layers[l].router = (struct mp_view){ routers[l], MP_WTYPE_F32, 2, 1 };
        config.is_moe[l] = l == 1 || first_is_moe;
    }
    config.layers = 2;
    config.moe_layers = 1 + first_is_moe;
    config.experts = 2;
    mp_model_id_make(&config, &weights, &made);
    CHECK_EQ(made.layers, 1 + first_is_moe);
    CHECK_EQ(made.experts, 2);
    return made.router_hash;
}

static void a_model_is_known_by_its_routers(void)
{
    CHECK(hash_of(1, 2, true) != hash_of(3, 2, true));
    CHECK(hash_of(1, 2, true) != hash_of(1, 3, true));
    CHECK(hash_of(1, 2, true) != hash_of(2, 1, true));
    CHECK(hash_of(1, 2, false) == hash_of(3, 2, false));
    CHECK(hash_of(0, 0, false) == UINT64_C(0xa8c7f832281a39c5)); /* of eight zeros */
}

static void groups_begin_with_0(void)
{
    struct mp_calibration_data *data;

    CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
    fill(data);
    for (uint32_t l = 0; l < id.layers; l++)
        data->groups[l] = 1;
    CHECK_EQ(mp_calibration_write(path, data, &id, 99), MP_OK);
    mp_calibration_destroy(data);
    refused(&id, "E_SIDECAR", "group of layer 0");
}

/* A token of a prompt, then steps: step s chooses experts s and s + 1 in even layers, 0 and 2 in
 * odd ones. */
static void write_trace(const char *name, uint32_t steps)
{
    const struct mp_trace_shape shape = { .model = "test",
                                          .layers = id.layers,
                                          .experts = id.experts,
                                          .top_k = id.top_k,
                                          .expert_bytes = 4096 };
    const float weights[2] = { 0.6f, 0.4f };
    struct mp_trace_writer *writer;

    CHECK_EQ(mp_trace_create(name, &shape, &writer), MP_OK);
    for (uint32_t s = 0; s <= steps; s++) {
        for (uint32_t l = 0; l < id.layers; l++) {
            const uint32_t experts[2] = { l % 2 ? 0 : (s + 2) % 3, l % 2 ? 2 : s % 3 };
            const struct mp_trace_row row = {
                .step = s, .layer = l, .position = s, .experts = experts, .weights = weights
            };

            mp_trace_write(writer, &row);
        }
    }
    CHECK_EQ(mp_trace_close(writer), MP_OK);
}

static bool near(float got, double want)
{
    return fabs((double)got - want) < 1e-6;
}

/* Shares of choices are those of the steps that were asked for; what a trace does not know is 0. */
static void a_trace_says_who_is_hot(void)
{
    const size_t E = id.experts;
    char trace[4200];
    struct mp_calibration_data *data;
    struct mp_calibration_summary summary;
    struct mp_calibrator *calibrator;
    struct mp_forced_routing *from;

    snprintf(trace, sizeof(trace), "%s/hot.trace", test_tmpdir());
    write_trace(trace, 9);
    CHECK_EQ(mp_forced_routing_load(trace, id.layers, id.experts, id.top_k, &from), MP_OK);
    CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
    CHECK_EQ(mp_calibrator_create(&id, 1, 1, &calibrator), MP_OK);
    CHECK_EQ(mp_calibrator_trace(calibrator, from, 4), MP_OK);
    mp_calibrator_finish(calibrator, data, &summary);
    CHECK_EQ(summary.tokens, 4);
    /* Even layers: 01, 12, 20, 01. */
    CHECK(near(data->facts.hot[0], 3 / 8.0) && near(data->facts.hot[1], 3 / 8.0) &&
          near(data->facts.hot[2], 2 / 8.0));
    CHECK(near(data->facts.hot[E], 0.5) && near(data->facts.hot[E + 1], 0) &&
          near(data->facts.hot[E + 2], 0.5));
    CHECK(near(data->facts.together[0 * E + 1], 2 / 3.0)); /* of 0: with 1 */
    CHECK(near(data->facts.next[0 * E + 2], 1));           /* 2 follows in layer 1 */
    /* Behind the last layer comes layer 0 of the next step: 0 then 1 in three steps. */
    CHECK(near(data->facts.next[(3 * E + 0) * E + 1], 2 / 3.0));
    for (size_t i = 0; i < id.layers * E * E; i++)
        CHECK(near(data->facts.similarity[i], i % E == i / E % E));
    for (size_t i = 0; i < id.layers * id.hidden; i++)
        CHECK(near(data->residual[i], 0));
    mp_calibrator_destroy(calibrator);
    mp_calibration_destroy(data);

    /* Longer than the trace: all of it, three times around. */
    CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
    CHECK_EQ(mp_calibrator_create(&id, 1, 1, &calibrator), MP_OK);
    CHECK_EQ(mp_calibrator_trace(calibrator, from, UINT64_MAX), MP_OK);
    mp_calibrator_finish(calibrator, data, &summary);
    CHECK_EQ(summary.tokens, 9);
    CHECK(near(data->facts.hot[0], 1 / 3.0) && near(data->facts.hot[2], 1 / 3.0));
    mp_calibrator_destroy(calibrator);
    mp_calibration_destroy(data);
    mp_forced_routing_destroy(from);
}

/* Middle layers are alike and no expert dominates in them. */
static void groups_are_found_where_the_layers_change(void)
{
    const double cosine[8] = { 0, 0.5, 0.52, 0.9, 0.91, 0.9, 0.62, 0.6 };
    const double share[8] = { 0.7, 0.68, 0.5, 0.5, 0.49, 0.51, 0.66, 0.65 };
    const uint32_t want[8] = { 0, 0, 1, 1, 1, 1, 2, 2 };
    uint32_t got[8];

    mp_calibrate_groups(cosine, share, 8, got);
    CHECK(memcmp(got, want, sizeof(want)) == 0);
    mp_calibrate_groups(cosine, share, 2, got);
    CHECK(got[0] == 0 && got[1] == 1);
    mp_calibrate_groups(cosine, share, 1, got);
    CHECK_EQ(got[0], 0);
}

/* Either number counts as much as the other, however little it varies. */
static void groups_weigh_both_numbers_equally(void)
{
    const double cosine[8] = { 0, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9 };
    const double share[8] = { 0.3, 0.3, 0.3, 0.3, 0.3, 0.32, 0.32, 0.32 };
    const uint32_t want[8] = { 0, 0, 1, 1, 1, 2, 2, 2 };
    uint32_t got[8];

    mp_calibrate_groups(cosine, share, 8, got);
    CHECK(memcmp(got, want, sizeof(want)) == 0);
}

/* Where all layers are alike every border is as good, and the earliest are taken. */
static void of_equal_borders_the_earlier_are_taken(void)
{
    const double cosine[5] = { 0, 0.5, 0.5, 0.5, 0.5 };
    const double share[5] = { 0.25, 0.25, 0.25, 0.25, 0.25 };
    const uint32_t want[5] = { 0, 1, 2, 2, 2 };
    uint32_t got[5];

    mp_calibrate_groups(cosine, share, 5, got);
    CHECK(memcmp(got, want, sizeof(want)) == 0);
}

/* As many layers as a model may have: the first one is like no other, and the last half dominated.
 */
static void as_many_layers_as_there_may_be_have_groups(void)
{
    static double cosine[MP_LAYERS_MAX], share[MP_LAYERS_MAX];
    static uint32_t got[MP_LAYERS_MAX];

    for (uint32_t l = 0; l < MP_LAYERS_MAX; l++) {
        cosine[l] = l == 1 ? 0.1 : 0.9;
        share[l] = l == 0 ? 0.9 : l < MP_LAYERS_MAX / 2 ? 0.1 : 0.2;
    }
    mp_calibrate_groups(cosine, share, MP_LAYERS_MAX, got);
    for (uint32_t l = 0; l < MP_LAYERS_MAX; l++)
        CHECK_EQ(got[l], l == 0 ? 0 : l < MP_LAYERS_MAX / 2 ? 1 : 2);
}

int main(void)
{
    RUN(what_is_written_is_read_back);
    RUN(a_trace_takes_it_by_its_shape);
    RUN(another_model_is_refused_by_name);
    RUN(damaged_files_are_refused);
    RUN(numbers_at_the_ends_are_accepted);
    RUN(a_model_is_known_by_its_routers);
    RUN(groups_begin_with_0);
    RUN(a_trace_says_who_is_hot);
    RUN(groups_are_found_where_the_layers_change);
    RUN(groups_weigh_both_numbers_equally);
    RUN(of_equal_borders_the_earlier_are_taken);
    RUN(as_many_layers_as_there_may_be_have_groups);
    return 0;
}
