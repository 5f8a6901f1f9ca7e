/*
 * Repacking into a directory that is not empty: an interrupted run, damage, another plan.
 */
#include "engine/repack/repack.h"
#include "tests/model/repack/models.h"

#include <sys/stat.h>

#include "tests/model/fails.h"
#include "tests/model/repack_check.h"
#include "tests/model/tiny_model.h"
#include "tests/support/tmpdir.h"

struct stop {
    unsigned calls, limit;
    uint64_t done, total;
};

static bool count_calls(void *context, uint64_t done, uint64_t total)
{
    struct stop *stop = context;

    CHECK(done <= total);
    stop->done = done;
    stop->total = total;
    return ++stop->calls <= stop->limit;
}

static bool has_final_weights(const char *dir)
{
    char name[64];

    for (unsigned i = 1; i <= 20; i++) {
        snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", i, 10);
        if (dir_has(dir, name))
            return true;
    }
    return dir_has(dir, "model.safetensors") || dir_has(dir, "model.safetensors.index.json");
}

static void an_interrupted_run_goes_on_behind_the_last_whole_file(void)
{
    struct mp_repack_config config = repack_config("models/tiny-moe", fresh());
    struct stop stop = { .limit = 100 };
    const struct mp_progress progress = { .report = count_calls, .context = &stop };
    const char *whole = config.out;
    struct mp_repack_report report;
    unsigned runs = 0;

    config.shard_bytes = 2 << 20;
    CHECK_EQ(repack_must(&config).shards, 10);
    config.out = fresh();
    config.progress = &progress;
    /* Each run ends after some calls more than the last, until one gets through. */
    for (;; runs++, stop.limit += 300) {
        const enum mp_status status = mp_repack(&config, &report);

        if (status == MP_OK)
            break;
        CHECK_EQ(status, MP_ERR_CANCELED);
        CHECK_STR(mp_error_last()->code, "E_CANCELED");
        CHECK(!has_final_weights(config.out));
        if (runs == 0) /* before the first file was whole nothing is left */
            CHECK(!dir_has(config.out, "."));
        stop.calls = 0;
    }
    CHECK(runs >= 2);
    CHECK(report.shards_kept > 0 && report.shards_kept < 10);
    CHECK_EQ(stop.done, stop.total);
    check_same_dirs(whole, config.out);
}

static void damage(const char *dir, const char *name, long at)
{
    char path[8192];
    FILE *file;
    int c;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "r+b");
    CHECK(file != NULL);
    CHECK(fseek(file, at, SEEK_SET) == 0);
    c = getc(file);
    CHECK(fseek(file, at, SEEK_SET) == 0);
    putc(c ^ 0x10, file);
    CHECK(fclose(file) == 0);
}

static void a_damaged_file_of_an_earlier_run_is_written_again(void)
{
    struct mp_repack_config config = repack_config("models/tiny-moe", fresh());
    struct stop stop = { .limit = 1200 };
    const struct mp_progress progress = { .report = count_calls, .context = &stop };
    const char *whole = config.out;
    struct mp_repack_report report;
    unsigned whole_files;

    config.shard_bytes = 2 << 20;
    repack_must(&config);
    config.out = fresh();
    config.progress = &progress;
    CHECK_EQ(mp_repack(&config, &report), MP_ERR_CANCELED);
    whole_files = dir_count(config.out) - 1; /* and the manifest */
    CHECK(dir_has(config.out, "model-00004-of-00010.safetensors.part"));
    damage(config.out, "model-00001-of-00010.safetensors.part", 2000000);
    damage(config.out, "model-00003-of-00010.safetensors.part", 12);
    stop = (struct stop){ .limit = UINT32_MAX };
    report = repack_must(&config);
    CHECK_EQ(report.shards_kept, whole_files - 2);
    check_same_dirs(whole, config.out);
}

static void what_is_there_stays_unless_forced(void)
{
    struct mp_repack_config config = repack_config(models[1].model, models[1].model);
    struct mp_repack_report report;
    char text[512];

    config.force = true;
    snprintf(text, sizeof(text), "'%s' is the model itself; choose another --out", config.out);
    CHECK_FAILS(mp_repack(&config, &report), MP_ERR_CONFIG, "E_REPACK_TARGET", text);

    config.force = false;
    config.out = fresh();
    CHECK(mkdir(config.out, 0777) == 0);
    tiny_write_text(config.out, "notes.txt", "mine");
    CHECK_EQ(mp_repack(&config, &report), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "is not empty") != NULL);
    CHECK_EQ(dir_count(config.out), 1);

    config.force = true;
    config.shard_bytes = 50000;
    CHECK(repack_must(&config).shards > 2);
    CHECK(dir_has(config.out, "notes.txt"));
    check_repacked(config.model, config.out);

    config.force = false;
    CHECK_EQ(mp_repack(&config, &report), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "already holds a model") != NULL);

    /* Several files become one, and one becomes several; nothing old stays. */
    config.force = true;
    config.shard_bytes = MP_REPACK_SHARD_BYTES_DEFAULT;
    report = repack_must(&config);
    CHECK_EQ(dir_count(config.out), 1 + 1 + report.files_copied);
    check_repacked(config.model, config.out);
    config.shard_bytes = 50000;
    report = repack_must(&config);
    CHECK_EQ(dir_count(config.out), report.shards + 1 + 1 + report.files_copied);
    check_repacked(config.model, config.out);
}

static void another_plan_does_not_go_on_in_an_unfinished_one(void)
{
    struct mp_repack_config config = repack_config("models/tiny-moe", fresh());
    struct stop stop = { .limit = 800 };
    const struct mp_progress progress = { .report = count_calls, .context = &stop };
    struct mp_repack_report report;

    config.shard_bytes = 2 << 20;
    config.progress = &progress;
    CHECK_EQ(mp_repack(&config, &report), MP_ERR_CANCELED);
    CHECK(dir_has(config.out, MP_REPACK_MANIFEST));
    config.shard_bytes = 4 << 20;
    config.progress = NULL;
    CHECK_EQ(mp_repack(&config, &report), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "unfinished") != NULL);
    CHECK(dir_has(config.out, "model-00001-of-00010.safetensors.part"));
    config.force = true;
    report = repack_must(&config);
    CHECK_EQ(dir_count(config.out), report.shards + 1 + report.files_copied);
    check_repacked(config.model, config.out);
}

int main(void)
{
    RUN(an_interrupted_run_goes_on_behind_the_last_whole_file);
    RUN(a_damaged_file_of_an_earlier_run_is_written_again);
    RUN(what_is_there_stays_unless_forced);
    RUN(another_plan_does_not_go_on_in_an_unfinished_one);
    return 0;
}
