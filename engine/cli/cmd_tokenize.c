/*
 * `moepager tokenize`: the tokens of a text, one per line or as JSON.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

static void print_json(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    struct mp_json_out json;
    size_t bytes = 0;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_array_begin(&json, "tokens");
    for (size_t i = 0; i < ids->count; i++)
        mp_json_put_u64(&json, NULL, ids->ids[i]);
    mp_json_array_end(&json);
    mp_json_array_begin(&json, "contents");
    for (size_t i = 0; i < ids->count; i++) {
        const char *content = mp_tokenizer_content(tok, ids->ids[i], &bytes);

        mp_json_put_string_n(&json, NULL, content, bytes);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static void print_lines(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        char quoted[MP_QUOTE_BYTES];
        size_t bytes = 0;
        const char *content = mp_tokenizer_content(tok, ids->ids[i], &bytes);

        printf("%u\t%s\n", ids->ids[i], mp_quote(quoted, content, bytes));
    }
}

enum mp_status mp_cmd_tokenize(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_tokenizer *tok = NULL;
    struct mp_ids ids = { 0 };
    char *file = NULL;
    size_t bytes = 0;
    enum mp_status status = mp_require_model(args);

    (void)settings;
    if (status == MP_OK && (args->prompt != NULL) + (args->prompt_file != NULL) != 1)
        status = mp_fail(MP_ERR_CONFIG, "E_USAGE",
                         "tokenize needs exactly one of --prompt, --prompt-file");
    if (status == MP_OK && args->prompt_file != NULL)
        status = mp_read_text(args->prompt_file, &file, &bytes);
    if (status == MP_OK)
        status = mp_tokenizer_load(args->model, &tok);
    if (status == MP_OK) {
        const char *text = file != NULL ? file : args->prompt;

        status = mp_tokenizer_encode(
            tok, text, file != NULL ? bytes : strlen(text),
            MP_ENCODE_ADD_SPECIAL | (args->special ? MP_ENCODE_PARSE_SPECIAL : 0), &ids);
    }
    if (status == MP_OK) {
        if (args->json)
            print_json(tok, &ids);
        else
            print_lines(tok, &ids);
        status = mp_check_stdout();
    }
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    free(file);
    return status;
}
