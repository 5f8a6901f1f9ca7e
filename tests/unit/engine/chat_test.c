/* Chat formats: what is recognised, what is refused and why, and the prompts that come out. */
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
    "{{- bos_token }}{%- for message in loop_messages %}{%- if message[\"role\"] == \"user\" %}"
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
    check_roles(mistral, with_system, 2, "has no system messages");
    check_roles(mistral, talk + 1, 2, "in turn");
    check_roles(mistral_system_first, with_system, 1, "needs a user message");
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

/* The template with `from` replaced by `to` must be refused. */
static void check_changed(const char *jinja, const char *from, const char *to, const char *text)
{
    char changed[4096];
    const char *at = strstr(jinja, from);

    CHECK(at != NULL);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - jinja), jinja, to, at + strlen(from));
    check_refused(changed, "E_CHAT_TEMPLATE", text);
}

/* The loop may call a message what it likes; a name that only ends so is another. */
static void loops_have_variables(void)
{
    static const char m[] =
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + "
        "m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    static const char two[] =
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + "
        "m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% for x in messages %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    char many[4096] = "{% for m in messages %}";

    check_prompt(m, one, 1, true, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    check_prompt(m, with_system, 2, false,
                 "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1<|im_end|>\n");
    check_changed(m, "m['role']", "n['role']", "do not look like ChatML");
    check_changed(m, "m['role']", "am['role']", "do not look like ChatML");
    check_refused(two, "E_CHAT_TEMPLATE", "do not look like ChatML");
    /* As long as it can get. */
    while (strlen(many) < sizeof(many) - 8)
        strcat(many, "m[");
    check_refused(many, "E_CHAT_TEMPLATE", "not a known one");
}

static void templates_with_something_unknown_are_refused(void)
{
    check_refused("", "E_CHAT_TEMPLATE", "neither ChatML nor [INST]");
    check_refused("{{ '<|user|>' + messages[0].content }}", "E_CHAT_TEMPLATE", "neither ChatML");
    check_changed(chatml, "{% for", "Answer in rhyme.{% for", "text outside of expressions");
    check_changed(chatml, "{% for", "{{ bos_token }}{% for", "bos_token");
    check_changed(chatml, "message['content']", "message['content'] | trim", "trim");
    check_changed(chatml, "<|im_end|>", "<|im_sep|><|im_end|>", "marks besides");
    check_changed(chatml, "'\\n' + message", "'\\n\\n' + message", "do not look like ChatML");
    check_changed(chatml, "assistant\\n", "assistant\\nSure, ", "beginning of its answers");
    check_changed(chatml, "{% endif %}", "{{ '<think>\\n' }}{% endif %}",
                  "beginning of its answers");
    check_changed(chatml_default, "helpful", "evil", "default system prompt is unknown");
    check_changed(chatml_default, "\n' + message.content", "\n\n' + message.content",
                  "do not look like ChatML");
    check_changed(chatml_default, " -}}\n{% endfor", " }}\n{% endfor", "text outside");
    check_changed(chatml_thinking, ".split(", ".partition(", "</think>");
    check_changed(mistral, "{{ bos_token }}", "", "bos_token");
    check_changed(mistral, " + eos_token", "", "answers are unknown");
    check_changed(mistral, "'[INST] ' +", "'[INST] ' + upper +", "user messages are unknown");
    check_changed(mistral, "'[INST] '", "'[INST] <<SYS>>'", "<<SYS>>");
    check_changed(mistral_system_first, "loop.first and", "true and",
                  "place of its system message");
    check_changed(mistral_system_last, "message[\"content\"] + \"[/INST]\" }}{%- endif",
                  "message[\"content\"] + \" [/INST]\" }}{%- endif", "user messages are unknown");
    check_changed(mistral_system_last, "[INST] \" + message", "[INST] \" + (x|trim) + message",
                  "user messages are unknown");
}

/* K12: programs are looked at, not run, however large or wicked. */
static void wicked_templates_are_not_run(void)
{
    const size_t bytes = 10u << 20;
    char *big = malloc(bytes + 1);
    struct mp_chat *chat;

    CHECK(big != NULL);
    memset(big, '{', bytes);
    big[bytes] = '\0';
    check_refused(big, "E_CHAT_SIZE", "has 10485760 bytes, need at most 1048576");
    CHECK_EQ(mp_chat_parse("t", big, MP_CHAT_TEMPLATE_BYTES_MAX, NULL, NULL, &chat), MP_ERR_MODEL);
    memset(big, '\'', bytes);
    CHECK_EQ(mp_chat_parse("t", big, MP_CHAT_TEMPLATE_BYTES_MAX, NULL, NULL, &chat), MP_ERR_MODEL);
    free(big);
    check_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "E_CHAT_TEMPLATE",
                  "neither ChatML");
    check_refused("{% include '/etc/passwd' %}", "E_CHAT_TEMPLATE", "neither ChatML");
    check_refused("{{ ''.__class__.__mro__[1].__subclasses__() }}{{ '[INST]", "E_CHAT_TEMPLATE",
                  "not a known one");
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void check_load(const char *dir, const char *name, const char *code)
{
    struct mp_chat *chat = NULL;

    CHECK_EQ(mp_chat_load(dir, &chat), code == NULL ? MP_OK : MP_ERR_MODEL);
    if (code == NULL)
        CHECK_STR(mp_chat_name(chat), name);
    else
        CHECK_STR(mp_error_last()->code, code);
    mp_chat_destroy(chat);
}

static void templates_are_found_in_their_files(void)
{
    const char *const dir = test_tmpdir();
    static const char *const files[] = { "tokenizer_config.json", "chat_template.jinja" };

    check_load(dir, NULL, "E_CHAT_NONE");
    write_file(dir, files[0], "{\"chat_template\": null}");
    check_load(dir, NULL, "E_CHAT_NONE");
    write_file(dir, files[0],
               "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\","
               "\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"},"
               "{\"name\": \"default\", \"template\": \"{{ bos_token }}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
               "{{ message['content'] + eos_token }}\"}]}");
    check_load(dir, "mistral", NULL);
    write_file(dir, files[1], chatml);
    check_load(dir, "chatml", NULL);
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
    RUN(loops_have_variables);
    RUN(orders_of_roles_that_a_format_has_not);
    RUN(templates_with_something_unknown_are_refused);
    RUN(wicked_templates_are_not_run);
    RUN(templates_are_found_in_their_files);
    RUN(users_cannot_spell_special_tokens);
    return 0;
}
