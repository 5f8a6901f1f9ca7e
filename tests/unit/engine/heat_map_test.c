/*
 * The heat map's file: what was counted is the order of the next run, half is forgotten in 1024
 * tokens, and a file that is damaged, hostile or of another model is a warning and no order.
 */
#include "engine/model/sidecar/heat_map.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/log.h"

static const struct mp_model_id id = {
    .layers = 2, .experts = 4, .top_k = 2, .hidden = 5, .router_hash = 0x123456789abcdef0
};

static char path[4200];

static char logged[2048]; /* the last line */

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    snprintf(logged, sizeof(logged), "%s", line);
}

static struct mp_heat_map *open_map(void)
{
    struct mp_heat_map *map = NULL;

    CHECK_EQ(mp_heat_map_open(path, &id, &map), MP_OK);
    return map;
}

/* `tokens` tokens choose `first` and 1 in layer 0, and 2 and 3 in layer 1. */
static void run(uint32_t first, uint32_t tokens)
{
    const uint32_t low[2] = { first, 1 }, high[2] = { 2, 3 };
    struct mp_heat_map *map = open_map();

    for (uint32_t t = 0; t < tokens; t++) {
        mp_heat_map_count(map, 0, 1, 2, low);
        mp_heat_map_count(map, 1, 1, 2, high);
    }
    mp_heat_map_close(map);
}

static void expect_order(const uint32_t *order, uint32_t count)
{
    struct mp_heat_map *map = open_map();
    uint32_t seen;
    const uint32_t *hottest = mp_heat_map_hottest(map, &seen);

    CHECK_EQ(seen, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(hottest[i], order[i]);
    mp_heat_map_close(map);
}

static void what_was_chosen_is_hottest_next_time(void)
{
    snprintf(path, sizeof(path), "%s/heat", test_tmpdir());
    expect_order(NULL, 0);
    CHECK(access(path, F_OK) != 0); /* nothing was counted */
    run(0, 3);
    expect_order((const uint32_t[]){ 0, 1, 6, 7 }, 4);
}

/* 1023 tokens do not outweigh what was there, 1025 do. */
static void half_is_forgotten_in_1024_tokens(void)
{
    snprintf(path, sizeof(path), "%s/half", test_tmpdir());
    run(0, 3);
    run(3, 1023);
    expect_order((const uint32_t[]){ 1, 6, 7, 0, 3 }, 5);
    unlink(path);
    run(0, 3);
    run(3, 1025);
    expect_order((const uint32_t[]){ 1, 6, 7, 3, 0 }, 5);
}

/* Replace bytes of a good file; a warning names the code, and the next run replaces the file. */
static void refused(const char *code, long at, const char *bytes, size_t count, long length)
{
    struct mp_heat_map *map;
    uint32_t seen;
    FILE *file;

    snprintf(path, sizeof(path), "%s/bad", test_tmpdir());
    unlink(path);
    run(0, 3);
    file = fopen(path, "r+");
    CHECK(file != NULL);
    CHECK_EQ(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
    if (length >= 0)
        CHECK_EQ(truncate(path, length), 0);
    logged[0] = '\0';
    map = open_map();
    CHECK(strstr(logged, code) != NULL);
    mp_heat_map_hottest(map, &seen);
    CHECK_EQ(seen, 0);
    mp_heat_map_count(map, 0, 1, 2, (const uint32_t[]){ 2, 1 });
    mp_heat_map_close(map);
    expect_order((const uint32_t[]){ 1, 2 }, 2);
}

static void broken_files_are_a_warning(void)
{
    refused("E_ST_", 0, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, -1); /* a header without an end */
    refused("E_ST_", 0, "", 0, 4);                                  /* cut off */
    refused("E_ST_", 0, "", 0, 0);                                  /* empty */
    refused("E_SIDECAR", -4, "\x00\x00\xc0\x7f", 4, -1);            /* not a number */
    refused("E_SIDECAR", -4, "\x00\x00\x00\x40", 4, -1);            /* a share of 2 */
    refused("E_SIDECAR", -4, "\x00\x00\x80\xbf", 4, -1);            /* a share of -1 */
}

static void another_models_file_is_a_warning(void)
{
    struct mp_model_id other = id;
    struct mp_heat_map *map;
    uint32_t seen;

    snprintf(path, sizeof(path), "%s/other", test_tmpdir());
    run(0, 3);
    other.router_hash++;
    logged[0] = '\0';
    CHECK_EQ(mp_heat_map_open(path, &other, &map), MP_OK);
    CHECK(strstr(logged, "E_SIDECAR_MODEL") != NULL);
    mp_heat_map_hottest(map, &seen);
    CHECK_EQ(seen, 0);
    mp_heat_map_close(map);
}

static void a_file_that_cannot_be_written_is_a_warning(void)
{
    struct mp_heat_map *map;

    snprintf(path, sizeof(path), "%s/no/such/folder", test_tmpdir());
    map = open_map();
    mp_heat_map_count(map, 0, 1, 2, (const uint32_t[]){ 2, 1 });
    logged[0] = '\0';
    mp_heat_map_close(map);
    CHECK(strstr(logged, "was not written") != NULL);
}

/* Every call fails once: no map, a warning, or nothing, and never a damaged file. */
static void every_failure_is_an_error_or_a_warning(void)
{
    const uint32_t chosen[2] = { 0, 1 };
    unsigned refused_runs = 0;
    bool failed = true;

    snprintf(path, sizeof(path), "%s/fault", test_tmpdir());
    run(0, 3);
    for (uint64_t n = 0; failed; n++) {
        struct mp_heat_map *map = NULL;
        enum mp_status status;

        fault_nth(FAULT_ANY, n);
        status = mp_heat_map_open(path, &id, &map);
        if (status == MP_OK) {
            mp_heat_map_count(map, 0, 1, 2, chosen);
            mp_heat_map_close(map);
        }
        failed = fault_end() > 0;
        CHECK(status == MP_OK || (status == MP_ERR_NO_MEMORY && map == NULL));
        refused_runs += status != MP_OK;
        map = open_map();
        CHECK(mp_heat_map_hottest(map, &(uint32_t){ 0 }) != NULL);
        mp_heat_map_close(map);
    }
    CHECK(refused_runs >= 3); /* the map, its arrays, their order */
}

static void a_setting_names_the_file(void)
{
    char file[4200], name[4200], small[4];

    CHECK(!mp_heat_map_locate("none", test_tmpdir(), name, sizeof(name)));
    CHECK(mp_heat_map_locate("some/where", test_tmpdir(), name, sizeof(name)));
    CHECK_STR(name, "some/where");
    CHECK(mp_heat_map_locate("auto", test_tmpdir(), name, sizeof(name)));
    snprintf(file, sizeof(file), "%s/" MP_HEAT_MAP_NAME, test_tmpdir());
    CHECK_STR(name, file);
    CHECK(mp_heat_map_locate("auto", "models/one.gguf", name, sizeof(name)));
    CHECK_STR(name, "models/" MP_HEAT_MAP_NAME);
    CHECK(!mp_heat_map_locate("too/long", "x", small, sizeof(small)));
}

int main(void)
{
    mp_log_set_sink(keep_line, NULL);
    RUN(what_was_chosen_is_hottest_next_time);
    RUN(half_is_forgotten_in_1024_tokens);
    RUN(broken_files_are_a_warning);
    RUN(another_models_file_is_a_warning);
    RUN(a_file_that_cannot_be_written_is_a_warning);
    RUN(every_failure_is_an_error_or_a_warning);
    RUN(a_setting_names_the_file);
    return 0;
}
