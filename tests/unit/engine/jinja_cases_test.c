/*
 * Templates and what Jinja itself makes of them: tests/data/chat/cases.json, or the files named by
 * the arguments (tools/hf/make_chat_fixtures.py). For files it prints how many texts are equal.
 * Each family of models has a template, and 30 conversations with it.
 */
#include <jansson.h>

#include "engine/model/arch/arch.h"
#include "engine/text/jinja/jinja.h"
#include "tests/support/test.h"

#define LEAST_TEXTS 30

/* What models of a family come with; templates are in its shape. */
static const struct {
    const char *arch, *template;
} families[] = {
    { "MixtralForCausalLM", "mistral.jinja" },
    { "Qwen2MoeForCausalLM", "chatml.jinja" },
    { "Qwen3MoeForCausalLM", "hermes.jinja" },
    { "Qwen3MoeForCausalLM", "coder.jinja" },
    { "OlmoeForCausalLM", "turns.jinja" },
    { "GraniteMoeForCausalLM", "granite.jinja" },
    { "Glm4MoeForCausalLM", "tagged.jinja" },
    { "Glm4MoeLiteForCausalLM", "tagged.jinja" },
    { "DeepseekForCausalLM", "deepseek.jinja" },
    { "DeepseekV2ForCausalLM", "deepseek.jinja" },
    { "DeepseekV3ForCausalLM", "deepseek_v3.jinja" },
    { "DeepseekV3ForCausalLM", "kimi.jinja" },
    { "XverseForCausalLM", "xverse.jinja" },
    { "XverseMoeForCausalLM", "xverse.jinja" },
    { "Ernie4_5_MoeForCausalLM", "ernie.jinja" },
    { "Gemma4ForConditionalGeneration", "gemma4.jinja" },
    { "Gemma4ForCausalLM", "gemma4.jinja" },
    { "GptOssForCausalLM", "harmony.jinja" },
    { "Qwen3NextForCausalLM", "hermes.jinja" },
    { "Qwen3_5MoeForConditionalGeneration", "coder.jinja" },
    { "Qwen3_5MoeForCausalLM", "coder.jinja" },
    { "PhimoeForCausalLM", "phi.jinja" },
    { "PhiMoEForCausalLM", "phi.jinja" },
    { "Lfm2MoeForCausalLM", "lfm2.jinja" },
    { "MiniMaxM2ForCausalLM", "minimax.jinja" },
};

static size_t equal, total;
/* Of `families`: texts that are equal; refusals do not count. */
static size_t family_texts[MP_ARRAY_LEN(families)];

static void count_text(const char *template)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(families); i++)
        family_texts[i] += strcmp(families[i].template, template) == 0;
}

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
    if (same && made)
        count_text(name);
    if (!same)
        fprintf(stderr, "%s, %zu: is\n%.*s\nexpected\n%s\n", name, i, (int)out.bytes,
                made ? out.text : mp_error_last()->text,
                text != NULL && json_is_string(text) ? json_string_value(text) : "a failure");
    mp_jinja_output_free(&out);
    json_decref(own);
}

static void check_file(const char *path)
{
    json_t *file = json_load_file(path, 0, NULL), *one, *variables;
    const json_t *sets = json_object_get(file, "variables"),
                 *cases = json_object_get(file, "cases");
    size_t i, k;

    CHECK(json_array_size(cases) > 0);
    json_array_foreach(cases, i, one)
    {
        const json_t *text = json_object_get(one, "template");
        const char *name = json_string_value(json_object_get(one, "name"));
        const json_t *set =
            json_object_get(sets, json_string_value(json_object_get(one, "variables")));
        struct mp_jinja *jinja = NULL;

        CHECK(json_array_size(set) > 0);
        if (mp_jinja_parse(name, json_string_value(text), json_string_length(text), &jinja) !=
            MP_OK)
            CHECK(jinja == NULL);
        json_array_foreach(set, k, variables)
        {
            check_text(name, k, jinja, variables, json_array_get(json_object_get(one, "texts"), k));
        }
        mp_jinja_destroy(jinja);
    }
    json_decref(file);
}

/* Every family that the engine has is in the list, and has its conversations. */
static void check_families(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(families); i++) {
        if (family_texts[i] < LEAST_TEXTS)
            fprintf(stderr, "%s: %zu conversations\n", families[i].arch, family_texts[i]);
        CHECK(family_texts[i] >= LEAST_TEXTS);
    }
    for (size_t i = 0; mp_arch_at(i) != NULL; i++) {
        bool found = false;

        for (size_t k = 0; k < MP_ARRAY_LEN(families); k++)
            found |= strcmp(families[k].arch, mp_arch_at(i)->name) == 0;
        if (!found)
            fprintf(stderr, "%s: no template\n", mp_arch_at(i)->name);
        CHECK(found);
    }
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        check_file("tests/data/chat/cases.json");
        check_families();
    }
    for (int i = 1; i < argc; i++)
        check_file(argv[i]);
    if (argc > 1)
        printf("%zu of %zu\n", equal, total);
    return equal != total;
}
