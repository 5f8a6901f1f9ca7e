/*
 * Symptom: `info --model` of a model that needs more RAM than there is ended with E_RAM and told
 * neither its sizes nor its smallest budget, which is what one asks before making it fit.
 * Cause: planning a run and refusing it were one function.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <stdint.h>
#include <sys/stat.h>

/* The bundled model, made for so many positions that its KV cache has 64 GiB. */
static const char *make_model(void)
{
    static const char *const files[] = { "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors" };
    const char *dir = cli_path("large");
    char path[4300], *text;
    size_t bytes;
    json_t *config;

    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), CLI_MODEL "/%s", files[i]);
        text = cli_read(path, &bytes);
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        cli_write(path, text, bytes);
        free(text);
    }
    config = json_load_file(CLI_MODEL "/config.json", 0, NULL);
    CHECK(config != NULL);
    CHECK_EQ(json_object_set_new(config, "max_position_embeddings", json_integer(1 << 24)), 0);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    CHECK_EQ(json_dump_file(config, path, 0), 0);
    json_decref(config);
    return dir;
}

int main(int argc, char **argv)
{
    const char *dir;
    json_t *json, *model;

    cli_init(argc, argv);
    dir = make_model();
    const struct cli info = {
        .args = { "info", "--json", "--model", dir, "--ctx", "16777216" },
    };
    const struct cli run = {
        .args = { "run", "--prompt", "a", "--model", dir, "--ctx", "16777216" },
    };

    json = cli_json(&info);
    model = json_object_get(json, "model");
    if (json_is_true(json_object_get(model, "fits")))
        SKIP("this machine has room for 64 GiB of KV cache");
    CHECK(json_is_false(json_object_get(model, "fits")));
    CHECK(json_integer_value(json_object_get(model, "smallest_budget_bytes")) > 0);
    CHECK(json_integer_value(json_object_get(model, "total_bytes")) > INT64_C(64) << 30);
    json_decref(json);
    cli_expect(&run, 4, "error[E_RAM]: not enough RAM");
    return 0;
}
