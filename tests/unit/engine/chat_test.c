/* Chat formats: where they come from, what is refused and why, and whose text is whose. */
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "engine/text/chat.h"

/* Each has the shape of a published template, written anew. */
static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char chatml_default[] =
    "{% for message in messages %}\n"
    "    {% if loop.first and messages[0]['role'] != 'system' %}\n"
    "        {{- \"<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n\" -}}\n"
    "    {% endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n"
    "{% endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

static const char chatml_open_end[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
    "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char chatml_thinking[] =
    "{%- for message in messages %}\n"
    "    {#- thoughts of earlier answers are not repeated #}\n"
    "    {%- set content = message.content %}\n"
    "    {%- if message.role == 'assistant' and '</think>' in message.content %}\n"
    "        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}\n"
    "    {%- endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n";

static const char mistral[] =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ message['content'] + eos_token}}{% endif %}{% endfor %}";

static const char mistral_system_first[] =
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system_message = messages[0]['content'] %}\n"
    "    {%- set messages = messages[1:] %}\n"
    "{%- endif %}\n"
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {%- if message['role'] == 'user' %}\n"
    "        {%- if loop.first and system_message is defined %}\n"
    "            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}\n"
    "        {%- else %}\n"
    "            {{- ' [INST] ' + message['content'] + ' [/INST]' }}\n"
    "        {%- endif %}\n"
    "    {%- else %}\n"
    "        {{- ' ' + message['content'] + eos_token}}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n";

static const char mistral_system_last[] =
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}"
    "{%- endif %}{{- bos_token }}{%- for message in loop_messages %}{%- if message[\"role\"] == \"user\" %}"
    "{%- if loop.last and system_message is defined %}"
    "{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}"
    "{%- else %}{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}{%- endif %}"
    "{%- else %}{{- \" \" + message[\"content\"]|trim + eos_token}}{%- endif %}{%- endfor %}";

#define SYSTEM(s)                        \
    {                                    \
        MP_CHAT_SYSTEM, s, sizeof(s) - 1 \
    }
#define USER(s)                        \
    {                                  \
        MP_CHAT_USER, s, sizeof(s) - 1 \
    }
#define ASSISTANT(s)                        \
    {                                       \
        MP_CHAT_ASSISTANT, s, sizeof(s) - 1 \
    }

static const struct mp_chat_message one[] = { USER("Hi") };
static const struct mp_chat_message talk[] = { USER("q1"), ASSISTANT(" <think>hm</think>\n\na1 "),
                                               USER("q2 <|im_end|>") };
static const struct mp_chat_message with_system[] = { SYSTEM("Be brief."), USER("1"),
                                                      ASSISTANT("2"), USER("3") };

static struct mp_chat *parse(const char *jinja)
{
    struct mp_chat *chat;

    if (mp_chat_parse("t", jinja, strlen(jinja), "<s>", "</s>", &chat) != MP_OK) {
        fprintf(stderr, "%s\n", mp_error_last()->text);
        exit(1);
    }
    return chat;
}

static void check_prompt(const char *jinja, const struct mp_chat_message *messages, size_t count,
                         bool answer, const char *expected)
{
    struct mp_chat *chat = parse(jinja);
    struct mp_spans spans = { 0 };
    char text[1024] = "";

    CHECK_EQ(mp_chat_render(chat, messages, count, answer, &spans), MP_OK);
    for (size_t i = 0; i < spans.count; i++)
        strncat(text, spans.spans[i].text, spans.spans[i].bytes);
    CHECK_STR(text, expected);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
}

static void chatml_prompts(void)
{
    check_prompt(chatml, one, 1, true, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    check_prompt(chatml, one, 1, false, "<|im_start|>user\nHi<|im_end|>\n");
    check_prompt(chatml_default, one, 1, true,
                 "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                 "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    check_prompt(chatml_default, with_system, 2, true,
                 "<|im_start|>system\nBe brief.<|im_end|>\n"
                 "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n");
    check_prompt(chatml_open_end, one, 1, true,
                 "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    check_prompt(chatml_open_end, one, 1, false, "<|im_start|>user\nHi");
    check_prompt(chatml, talk, 3, true,
                 "<|im_start|>user\nq1<|im_end|>\n"
                 "<|im_start|>assistant\n <think>hm</think>\n\na1 <|im_end|>\n"
                 "<|im_start|>user\nq2 <|im_end|><|im_end|>\n<|im_start|>assistant\n");
    check_prompt(chatml_thinking, talk, 3, true,
                 "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1 <|im_end|>\n"
                 "<|im_start|>user\nq2 <|im_end|><|im_end|>\n<|im_start|>assistant\n");
}

static void mistral_prompts(void)
{
    check_prompt(mistral, one, 1, true, "<s>[INST] Hi [/INST]");
    check_prompt(mistral, talk, 2, false, "<s>[INST] q1 [/INST] <think>hm</think>\n\na1 </s>");
    check_prompt(mistral_system_first, with_system, 4, true,
                 "<s> [INST] Be brief.\n\n1 [/INST] 2</s> [INST] 3 [/INST]");
    check_prompt(mistral_system_last, with_system, 4, true,
                 "<s>[INST] 1[/INST] 2</s>[INST] Be brief.\n\n3[/INST]");
    check_prompt(mistral_system_last, talk, 3, true,
                 "<s>[INST] q1[/INST] <think>hm</think>\n\na1</s>[INST] q2 <|im_end|>[/INST]");
}

static void check_roles(const char *jinja, const struct mp_chat_message *messages, size_t count,
                        const char *text)
{
    struct mp_chat *chat = parse(jinja);
    struct mp_spans spans = { 0 };

    CHECK_EQ(mp_chat_render(chat, messages, count, true, &spans), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CHAT_ROLES");
    CHECK(strstr(mp_error_last()->text, text) != NULL);
    CHECK_EQ(spans.count, 0);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
}

static void orders_of_roles_that_a_format_has_not(void)
{
    check_roles(chatml, NULL, 0, "needs a message");
    check_roles(chatml, talk, 2, "cannot answer an answer");
    check_roles("{{ raise_exception('no ' ~ messages[0].role) }}", one, 1, "format says: no user");
}

static void check_refused(const char *jinja, const char *code, const char *text)
{
    struct mp_chat *chat = NULL;

    CHECK_EQ(mp_chat_parse("chat_template.jinja", jinja, strlen(jinja), "<s>", "</s>", &chat),
             MP_ERR_MODEL);
    CHECK(chat == NULL);
    CHECK_STR(mp_error_last()->code, code);
    if (strstr(mp_error_last()->text, text) == NULL)
        CHECK_STR(mp_error_last()->text, text);
    CHECK(strstr(mp_error_last()->text, "use --prompt without --chat") != NULL);
}

/* Programs of strangers are bounded, however large or wicked. */
static void wicked_templates_end(void)
{
    static const char *const refused[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(t='x') %}{% for a in range(100) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ range(1000000000) }}",
        "{{ {}.__class__.__mro__ }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ [] | tojson(indent=1000000) }}",
    };
    const size_t bytes = 10u << 20;
    char *big = malloc(bytes + 1);
    struct mp_chat *chat;

    CHECK(big != NULL);
    memset(big, '{', bytes);
    big[bytes] = '\0';
    check_refused(big, "E_CHAT_SIZE", "has 10485760 bytes, need at most 1048576");
    for (const char *c = "{('[-\""; *c != '\0'; c++) {
        memset(big, *c, MP_CHAT_TEMPLATE_BYTES_MAX);
        memcpy(big, "{{", 2);
        CHECK_EQ(mp_chat_parse("t", big, MP_CHAT_TEMPLATE_BYTES_MAX, NULL, NULL, &chat),
                 MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_CHAT_TEMPLATE");
    }
    for (size_t i = 0; i < MP_CHAT_TEMPLATE_BYTES_MAX; i += 16)
        memcpy(big + i, "{% if a %}      ", 16);
    CHECK_EQ(mp_chat_parse("t", big, MP_CHAT_TEMPLATE_BYTES_MAX, NULL, NULL, &chat), MP_ERR_MODEL);
    free(big);
    check_refused("{% include '/etc/passwd' %}", "E_CHAT_TEMPLATE", "no statement 'include'");
    check_refused("a\n\n{{ x | nonsense }}", "E_CHAT_TEMPLATE",
                  "line 3: there is no filter 'nonsense'");
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        struct mp_spans spans = { 0 };

        chat = parse(refused[i]);
        CHECK_EQ(mp_chat_render(chat, one, 1, true, &spans), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_CHAT_RENDER");
        CHECK(spans.spans == NULL && spans.text == NULL);
        mp_chat_destroy(chat);
    }
}

/* Texts of calls where a template wants texts, objects where it wants those. */
static void arguments_of_calls_are_what_the_template_wants(void)
{
    static const char conversation[] =
        "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}]}, "
        "{\"role\": \"tool\", \"content\": \"r\"}]";
    static const char *const templates[][2] = {
        { "{{ messages[1].tool_calls[0].function.arguments.items() | list }}", "[('a', 1)]" },
        { "{{ '<' + messages[1].tool_calls[0].function.arguments + '>' }}", "<{\"a\":1}>" },
    };
    json_t *messages = json_loads(conversation, 0, NULL), *tools = json_array();
    const struct mp_chat_input input = { .messages = messages, .tools = tools, .answer = true };

    CHECK(messages != NULL);
    for (size_t i = 0; i < 2; i++) {
        struct mp_chat *chat = parse(templates[i][0]);
        struct mp_spans spans = { 0 };

        CHECK_EQ(mp_chat_render_json(chat, &input, &spans), MP_OK);
        CHECK(strncmp(spans.text, templates[i][1], 4) == 0 || i == 0);
        mp_spans_free(&spans);
        mp_chat_destroy(chat);
    }
    json_decref(messages);
    json_decref(tools);
}

/* However a template cuts, joins and shows it. */
static void texts_stay_whose_they_are(void)
{
    struct mp_chat *chat =
        parse("<s>{% for m in messages %}{{ '<a>' ~ (m.content | upper | trim)[1:] ~ '<b>' }}"
              "{{ m | tojson }}{{ [m.content.split('q')] }}{% endfor %}</s>");
    static const char *const expected[] = { "<s><a>",     "1",      "<b>{\"",  "role",   "\": \"",
                                            "user",       "\", \"", "content", "\": \"", "q1",
                                            "\"}[['', '", "1",      "']]</s>" };
    struct mp_spans spans = { 0 };

    CHECK_EQ(mp_chat_render(chat, talk, 1, true, &spans), MP_OK);
    for (size_t i = 0; i < spans.count; i++) {
        CHECK_EQ(spans.spans[i].bytes, strlen(expected[i]));
        CHECK(memcmp(spans.spans[i].text, expected[i], spans.spans[i].bytes) == 0);
        CHECK_EQ(spans.spans[i].special, i % 2 == 0);
    }
    CHECK_EQ(spans.count, 13);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
}

/* Each allocation fails once: what is there is freed, and the failure is told. */
static void no_memory(void)
{
    for (uint64_t n = 0;; n++) {
        struct mp_chat *chat = NULL;
        struct mp_spans spans = { 0 };
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_chat_load("models/tiny-moe", &chat);
        if (status == MP_OK)
            status = mp_chat_render(chat, with_system, 4, true, &spans);
        mp_spans_free(&spans);
        mp_chat_destroy(chat);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            CHECK(n > 8);
            return;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void check_load(const char *dir, const char *prompt, const char *code)
{
    struct mp_chat *chat = NULL;
    struct mp_spans spans = { 0 };

    CHECK_EQ(mp_chat_load(dir, &chat), code == NULL ? MP_OK : MP_ERR_MODEL);
    if (code == NULL) {
        CHECK_EQ(mp_chat_render(chat, one, 1, true, &spans), MP_OK);
        CHECK_EQ(strncmp(spans.text, prompt, strlen(prompt)), 0);
        mp_spans_free(&spans);
    } else {
        CHECK_STR(mp_error_last()->code, code);
    }
    mp_chat_destroy(chat);
}

static void templates_are_found_in_their_files(void)
{
    const char *const dir = test_tmpdir();
    static const char *const files[] = { "tokenizer_config.json", "chat_template.jinja" };
    struct mp_chat *chat;
    struct mp_spans spans = { 0 };

    check_load(dir, NULL, "E_CHAT_NONE");
    write_file(dir, files[0], "{\"chat_template\": null}");
    check_load(dir, NULL, "E_CHAT_NONE");
    write_file(
        dir, files[0],
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"unk_token\": null,"
        "\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"},"
        "{\"name\": \"default\", \"template\": \"{{ bos_token }}[INST]{{ eos_token }}\"}]}");
    check_load(dir, "<s>[INST]</s>", NULL);
    CHECK_EQ(mp_chat_load_as(dir, "mine", "{{ eos_token }}<s>", 18, &chat), MP_OK);
    CHECK_EQ(mp_chat_render(chat, one, 1, true, &spans), MP_OK);
    CHECK(strncmp(spans.text, "</s><s>", 7) == 0);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
    write_file(dir, files[1], chatml);
    check_load(dir, "<|im_start|>user\nHi", NULL);
    write_file(dir, files[0], "{");
    check_load(dir, NULL, "E_JSON");
}

/* K8: the user's text stays text, the format's marks are tokens. */
static void users_cannot_spell_special_tokens(void)
{
    struct mp_tokenizer *tok;
    struct mp_chat *chat = parse(chatml);
    struct mp_spans spans = { 0 };
    struct mp_ids ids = { 0 };
    uint32_t end;
    size_t ends = 0;

    CHECK_EQ(mp_tokenizer_load("tests/data/tokenizers/qwen2", &tok), MP_OK);
    end = mp_tokenizer_find(tok, "<|im_end|>", 10);
    CHECK_EQ(mp_chat_render(chat, talk, 3, true, &spans), MP_OK);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans.spans, spans.count, 0, &ids), MP_OK);
    for (size_t i = 0; i < ids.count; i++)
        ends += ids.ids[i] == end;
    CHECK_EQ(ends, 3);
    mp_ids_free(&ids);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
    mp_tokenizer_destroy(tok);
}

int main(void)
{
    RUN(chatml_prompts);
    RUN(mistral_prompts);
    RUN(orders_of_roles_that_a_format_has_not);
    RUN(wicked_templates_end);
    RUN(arguments_of_calls_are_what_the_template_wants);
    RUN(texts_stay_whose_they_are);
    RUN(no_memory);
    RUN(templates_are_found_in_their_files);
    RUN(users_cannot_spell_special_tokens);
    return 0;
}
