/*
 * Templates and what Jinja itself makes of them: tests/data/chat/cases.json, or the files named by
 * the arguments (tools/hf/make_chat_fixtures.py). For files it prints how many texts are equal.
 */
#include <jansson.h>

#include "engine/text/jinja/jinja.h"
#include "tests/support/test.h"

static size_t equal, total;

/* A text, or NULL: it must fail, be it when it is read or when it is run. */
static void check_text(const char *name, size_t i, const struct mp_jinja *jinja,
                       const json_t *variables, const json_t *text)
{
    json_t *own = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    struct mp_jinja_output out = { .text = NULL };
    const bool made =
        jinja != NULL && mp_jinja_render(jinja, own, variables, 1780000000, &out) == MP_OK;
    const bool same = made == json_is_string(text) &&
                      (!made || (out.bytes == json_string_length(text) &&
                                 memcmp(out.text, json_string_value(text), out.bytes) == 0));

    total++;
    equal += same;
    if (!same)
        fprintf(stderr, "%s, %zu: is\n%.*s\nexpected\n%s\n", name, i, (int)out.bytes,
                made ? out.text : mp_error_last()->text,
                text != NULL && json_is_string(text) ? json_string_value(text) : "a failure");
    mp_jinja_output_free(&out);
    json_decref(own);
}

static void check_file(const char *path)
{
    json_t *cases = json_load_file(path, 0, NULL), *one, *variables;
    size_t i, k;

    CHECK(json_is_array(cases));
    json_array_foreach(cases, i, one)
    {
        const json_t *text = json_object_get(one, "template");
        const char *name = json_string_value(json_object_get(one, "name"));
        struct mp_jinja *jinja = NULL;

        if (mp_jinja_parse(name, json_string_value(text), json_string_length(text), &jinja) !=
            MP_OK)
            CHECK(jinja == NULL);
        json_array_foreach(json_object_get(one, "variables"), k, variables)
        {
            check_text(name, k, jinja, variables, json_array_get(json_object_get(one, "texts"), k));
        }
        mp_jinja_destroy(jinja);
    }
    json_decref(cases);
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        check_file("tests/data/chat/cases.json");
        CHECK(total > 4 * 30);
    }
    for (int i = 1; i < argc; i++)
        check_file(argv[i]);
    if (argc > 1)
        printf("%zu of %zu\n", equal, total);
    return equal != total;
}
