/*
 * Recognises the Jinja templates of known chat formats. Runs no template.
 */
#include "engine/text/chat_template.h"

#include <stdlib.h>
#include <string.h>

/*
 * Recognising a template. First its Jinja is brought to one spelling ("squeezed"): no white space
 * and no comments outside of string literals, literals in single quotes with line ends as \n, and
 * message['key'] for message.key, whatever the loop calls a message; "{%-" and the like lose the
 * dash. Text outside of expressions and statements, which would be printed as it is, no known
 * format has. Then the expressions that a known format consists of must be there, and nothing that
 * a known format does not have. What is there decides the variant.
 */

struct squeezed {
    char *text;
    size_t used;
};

static void put(struct squeezed *out, const char *text, size_t bytes)
{
    memcpy(out->text + out->used, text, bytes);
    out->used += bytes;
}

/* One string literal from text[at], its opening quote; returns the place behind it. */
static size_t squeeze_literal(struct squeezed *out, const char *text, size_t bytes, size_t at)
{
    const char quote = text[at++];

    put(out, "'", 1);
    for (; at < bytes && text[at] != quote; at++) {
        if (text[at] == '\\' && at + 1 < bytes) {
            put(out, text + at, 2);
            at++;
        } else if (text[at] == '\n') {
            put(out, "\\n", 2);
        } else if (text[at] == '\'') {
            put(out, "\\'", 2);
        } else {
            put(out, text + at, 1);
        }
    }
    put(out, "'", 1);
    return at < bytes ? at + 1 : at;
}

static bool starts(const char *text, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The name that the loop over `messages` gives to each: "m" of "{% for m in messages". Where loops
 * differ, or none is found, "message". */
static const char *find_variable(const char *text, size_t bytes, size_t *bytes_p)
{
    static const char fallback[] = "message", behind[] = " in messages";
    const char *found = NULL, *end = text + bytes, *at = text;

    while ((at = memmem(at, (size_t)(end - at), behind, strlen(behind))) != NULL) {
        const char *begin = at;

        while (begin > text && is_name(begin[-1]))
            begin--;
        if (begin - text >= 4 && memcmp(begin - 4, "for ", 4) == 0 && begin < at) {
            if (found != NULL &&
                ((size_t)(at - begin) != *bytes_p || memcmp(found, begin, *bytes_p) != 0)) {
                found = NULL;
                break;
            }
            found = begin;
            *bytes_p = (size_t)(at - begin);
        }
        at += strlen(behind);
    }
    if (found != NULL)
        return found;
    *bytes_p = strlen(fallback);
    return fallback;
}

/* Is the variable used at text[at], with a key behind it? Names that end in message count, too. */
static bool is_variable(const char *text, size_t bytes, size_t at, const char *variable,
                        size_t variable_bytes)
{
    return bytes - at > variable_bytes && memcmp(text + at, variable, variable_bytes) == 0 &&
           (text[at + variable_bytes] == '.' || text[at + variable_bytes] == '[') &&
           (at == 0 || !is_name(text[at - 1]) ||
            (variable_bytes == 7 && memcmp(variable, "message", 7) == 0));
}

static size_t comment_bytes(const char *text, size_t bytes)
{
    const char *end = memmem(text, bytes, "#}", 2);

    return end != NULL ? (size_t)(end - text) + 2 : bytes;
}

/* Outside of literals: what is spelled in one of two ways gets one, the rest is copied byte by
 * byte. Returns how much of the text that was. */
static size_t squeeze_code(struct squeezed *out, const char *text, size_t bytes)
{
    static const struct {
        const char *from, *to;
    } spellings[] = {
        { " ", "" },     { "\t", "" },    { "\r", "" },    { "\n", "" },
        { "{%-", "{%" }, { "{{-", "{{" }, { "-%}", "%}" }, { "-}}", "}}" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(spellings); i++) {
        if (starts(text, bytes, spellings[i].from)) {
            put(out, spellings[i].to, strlen(spellings[i].to));
            return strlen(spellings[i].from);
        }
    }
    put(out, text, 1);
    return 1;
}

/* A use of the loop's variable, by its one name and with its key in brackets. Returns its bytes. */
static size_t squeeze_variable(struct squeezed *out, const char *text, size_t bytes,
                               size_t variable_bytes)
{
    static const struct {
        const char *from, *to;
    } keys[] = { { ".role", "['role']" }, { ".content", "['content']" } };

    put(out, "message", 7);
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        if (starts(text + variable_bytes, bytes - variable_bytes, keys[i].from)) {
            put(out, keys[i].to, strlen(keys[i].to));
            return variable_bytes + strlen(keys[i].from);
        }
    }
    return variable_bytes;
}

/* The result has at most four times the bytes: "m[" becomes "message[". */
static enum mp_status squeeze(const char *text, size_t bytes, char **out_p)
{
    struct squeezed out = { .text = malloc(bytes * 4 + 64) };
    size_t variable_bytes = 0;
    const char *variable = find_variable(text, bytes, &variable_bytes);

    if (out.text == NULL)
        return mp_fail_no_memory("a chat template", bytes * 4 + 64);
    for (size_t at = 0; at < bytes;) {
        if (starts(text + at, bytes - at, "{#"))
            at += comment_bytes(text + at, bytes - at);
        else if (text[at] == '\'' || text[at] == '"')
            at = squeeze_literal(&out, text, bytes, at);
        else if (is_variable(text, bytes, at, variable, variable_bytes))
            at += squeeze_variable(&out, text + at, bytes - at, variable_bytes);
        else
            at += squeeze_code(&out, text + at, bytes - at);
    }
    /* Text with NUL inside is not a template; it ends the search there. */
    out.text[out.used] = '\0';
    *out_p = out.text;
    return MP_OK;
}

/* The end of the tag that begins at text[at], or `bytes`. */
static size_t tag_end(const char *text, size_t bytes, size_t at)
{
    const char *const close = text[at + 1] == '{' ? "}}" : text[at + 1] == '%' ? "%}" : "#}";

    for (size_t i = at + 2; i + 1 < bytes; i++) {
        if (memcmp(text + i, close, 2) == 0)
            return i + 2;
        if (close[0] == '#' || (text[i] != '\'' && text[i] != '"'))
            continue;
        for (const char quote = text[i++]; i < bytes && text[i] != quote; i++)
            i += text[i] == '\\';
    }
    return bytes;
}

/*
 * Whether the text between two tags (or at an end of the template, where one is NULL) is printed.
 * White space is not if a dash stands at it. Without one, a line end behind a statement goes, and
 * so do the blanks after it before another statement (the library sets trim_blocks and
 * lstrip_blocks), and the line end at the end of the file.
 */
static bool gap_prints(const char *gap, size_t bytes, const char *before_end, const char *behind)
{
    size_t blanks = 1;

    for (size_t i = 0; i < bytes; i++) {
        if (memchr(" \t\r\n", gap[i], 4) == NULL)
            return true;
    }
    if (bytes == 0 || (before_end != NULL && before_end[-3] == '-') ||
        (behind != NULL && behind[2] == '-'))
        return false;
    if (behind == NULL)
        return bytes > 1 || gap[0] != '\n';
    if (before_end == NULL || before_end[-2] == '}' || gap[0] != '\n')
        return true;
    while (blanks < bytes && (gap[blanks] == ' ' || gap[blanks] == '\t'))
        blanks++;
    return blanks < bytes || (bytes > 1 && behind[1] == '{');
}

static bool prints_text(const char *text, size_t bytes)
{
    const char *before = NULL;
    size_t at = 0;

    for (;;) {
        size_t tag = at;

        while (tag + 2 < bytes && !(text[tag] == '{' && memchr("{%#", text[tag + 1], 3) != NULL))
            tag++;
        if (tag + 2 >= bytes)
            return gap_prints(text + at, bytes - at, before, NULL);
        if (gap_prints(text + at, tag - at, before, text + tag))
            return true;
        at = tag_end(text, bytes, tag);
        before = text + at;
    }
}

static enum mp_status refuse(const char *name, const char *what)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_CHAT_TEMPLATE",
                   "chat template in '%s' is not a known one (%s); use --prompt without --chat",
                   mp_quote(quoted, name, strlen(name)), what);
}

/* The first of the words that the text has, or NULL. */
static const char *find_any(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strstr(text, *words) != NULL)
            return *words;
    }
    return NULL;
}

/* ---- chatml */

static const char *const default_systems[] = {
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
};

/* Each <|im_start|>system must be followed by the message's text or a known default. */
static enum mp_status find_default_system(const char *name, const char *text, struct mp_chat *chat)
{
    static const char head[] = "<|im_start|>system\\n";

    for (const char *at = strstr(text, head); at != NULL; at = strstr(at, head)) {
        size_t i = 0;

        at += strlen(head);
        if (*at == '\'')
            continue;
        for (; i < MP_ARRAY_LEN(default_systems); i++) {
            const size_t bytes = strlen(default_systems[i]);

            if (starts(at, strlen(at), default_systems[i]) &&
                (starts(at + bytes, strlen(at + bytes), "<|im_end|>") || at[bytes] == '\''))
                break;
        }
        if (i == MP_ARRAY_LEN(default_systems))
            return refuse(name, "its default system prompt is unknown");
        if (chat->default_system != NULL && chat->default_system != default_systems[i])
            return refuse(name, "it has several default system prompts");
        chat->default_system = default_systems[i];
    }
    return MP_OK;
}

/* Only the two marks of the format may be in it. */
static bool has_other_marks(const char *text)
{
    static const char *const marks[] = { "<|im_start|>", "<|im_end|>" };

    for (const char *at = strstr(text, "<|"); at != NULL; at = strstr(at + 2, "<|")) {
        if (!starts(at, strlen(at), marks[0]) && !starts(at, strlen(at), marks[1]))
            return true;
    }
    return false;
}

/* The beginning of the answer is the end of the template. */
static enum mp_status recognize_answer_head(const char *name, const char *text,
                                            struct mp_chat *chat)
{
    static const char head[] = "{{'<|im_start|>assistant\\n";
    static const char thinking[] = "<think>\\n";
    static const char *const tails[] = {
        "'}}{%endif%}",
        "'}}{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}"
        "{{'<think>\\n\\n</think>\\n\\n'}}{%endif%}{%endif%}",
    };
    const char *at = strstr(text, head);

    if (at == NULL)
        return refuse(name, "it has no beginning of answers");
    at += strlen(head);
    chat->opens_thinking = starts(at, strlen(at), thinking);
    if (chat->opens_thinking)
        at += strlen(thinking);
    if (strcmp(at, tails[0]) != 0 && (chat->opens_thinking || strcmp(at, tails[1]) != 0))
        return refuse(name, "the beginning of its answers is unknown");
    return MP_OK;
}

static enum mp_status recognize_chatml(const char *name, const char *text, struct mp_chat *chat)
{
    static const char *const unknown[] = { "bos_token", "eos_token",       "trim",
                                           "strftime",  "raise_exception", NULL };
    static const char *const endings[] = { "'<|im_end|>'+'\\n'", "'<|im_end|>\\n'", NULL };
    const char *word = find_any(text, unknown);
    enum mp_status status;

    chat->kind = MP_CHAT_CHATML;
    if (word != NULL)
        return refuse(name, word);
    if (has_other_marks(text))
        return refuse(name, "it has marks besides <|im_start|> and <|im_end|>");
    if (strstr(text, "'<|im_start|>'+message['role']+'\\n'+") == NULL ||
        find_any(text, endings) == NULL)
        return refuse(name, "its messages do not look like ChatML");
    chat->open_end = strstr(text, "loop.lastandadd_generation_prompt") != NULL;
    chat->drops_thinking = strstr(text, ".split('</think>')") != NULL;
    if (!chat->drops_thinking && strstr(text, "</think>") != NULL)
        return refuse(name, "what it does with </think> is unknown");
    status = recognize_answer_head(name, text, chat);
    return status == MP_OK ? find_default_system(name, text, chat) : status;
}

/* ---- mistral */

/* The literal that ends at its closing quote `end`; NULL if it is not short and plain. */
static bool literal_before(const char *text, const char *end, char out[MP_CHAT_LITERAL_BYTES])
{
    const char *begin = end;
    size_t used = 0;

    if (*end != '\'')
        return false;
    do {
        if (begin == text)
            return false;
        begin--;
    } while (*begin != '\'');
    for (const char *at = begin + 1; at < end; at++) {
        if (used + 1 >= MP_CHAT_LITERAL_BYTES)
            return false;
        if (*at == '\\' && at[1] != 'n')
            return false;
        out[used++] = *at == '\\' ? '\n' : *at;
        at += *at == '\\';
    }
    out[used] = '\0';
    return true;
}

/* The literal that begins at its opening quote. */
static bool literal_at(const char *text, const char *begin, char out[MP_CHAT_LITERAL_BYTES])
{
    const char *end = *begin == '\'' ? strchr(begin + 1, '\'') : NULL;

    return end != NULL && literal_before(text, end, out);
}

/* Remember what stands around a text; each place that has it must agree. */
static bool agree(char known[MP_CHAT_LITERAL_BYTES], const char *found)
{
    if (known[0] == '\0')
        strcpy(known, found);
    return strcmp(known, found) == 0;
}

static unsigned count_of(const char *text, const char *word)
{
    unsigned count = 0;

    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        count++;
    return count;
}

/* '..[INST] '+message['content']+' [/INST]', and with system_message+'\n\n'+ before the content. */
static enum mp_status find_user(const char *name, const char *text, struct mp_chat *chat)
{
    static const char content[] = "'+message['content']+'";
    static const char system[] = "'+system_message+'\\n\\n";
    char before[MP_CHAT_LITERAL_BYTES], behind[MP_CHAT_LITERAL_BYTES];
    bool has_system = false;
    unsigned found = 0;

    for (const char *at = strstr(text, content); at != NULL; at = strstr(at + 1, content)) {
        const char *quote = at;

        if (!literal_at(text, at + strlen(content) - 1, behind))
            return refuse(name, "a literal is too long");
        if (strstr(behind, "[/INST]") == NULL)
            continue;
        if ((size_t)(at - text) > strlen(system) &&
            starts(at - strlen(system), strlen(system), system)) {
            quote = at - strlen(system);
            has_system = true;
        }
        if (!literal_before(text, quote, before) || strstr(before, "[INST]") == NULL ||
            !agree(chat->user_before, before) || !agree(chat->user_behind, behind))
            return refuse(name, "its user messages are unknown");
        found++;
    }
    if (found == 0 || count_of(text, "[INST]") != found || count_of(text, "[/INST]") != found)
        return refuse(name, "its user messages are unknown");
    if (!has_system)
        return MP_OK;
    if (strstr(text, "loop.firstandsystem_messageisdefined") != NULL)
        chat->system = MP_CHAT_SYSTEM_FIRST;
    else if (strstr(text, "loop.lastandsystem_messageisdefined") != NULL)
        chat->system = MP_CHAT_SYSTEM_LAST;
    else
        return refuse(name, "the place of its system message is unknown");
    return MP_OK;
}

/* message['content']+eos_token, with literals before and behind; blanks around it may go. */
static enum mp_status find_answer(const char *name, const char *text, struct mp_chat *chat)
{
    static const char plain[] = "message['content']+eos_token";
    static const char trimmed[] = "message['content']|trim+eos_token";
    const char *const trim = strstr(text, "|trim");
    const char *const answer = trim != NULL ? trimmed : plain;
    const char *at = strstr(text, answer);

    chat->trims_answers = trim != NULL;
    if (trim != NULL && strstr(trim + 5, "trim") != NULL)
        return refuse(name, "it trims other texts than answers");
    if (at == NULL || strstr(at + 1, answer) != NULL || at - text < 2)
        return refuse(name, "its answers are unknown");
    if (at[-1] == '+' && !literal_before(text, at - 2, chat->answer_before))
        return refuse(name, "its answers are unknown");
    at += strlen(answer);
    if (*at == '+' && !literal_at(text, at + 1, chat->answer_behind))
        return refuse(name, "its answers are unknown");
    return MP_OK;
}

static enum mp_status recognize_mistral(const char *name, const char *text, struct mp_chat *chat)
{
    static const char *const unknown[] = { "<<SYS>>", "strip",   "strftime", "<|",
                                           "<think",  "[THINK]", NULL };
    const char *word = find_any(text, unknown);
    enum mp_status status;

    chat->kind = MP_CHAT_MISTRAL;
    if (word != NULL)
        return refuse(name, word);
    if (chat->bos == NULL || chat->eos == NULL)
        return refuse(name, "tokenizer_config.json does not name bos_token and eos_token");
    if (strstr(text, "{{bos_token}}") == NULL)
        return refuse(name, "it does not begin with bos_token");
    status = find_user(name, text, chat);
    return status == MP_OK ? find_answer(name, text, chat) : status;
}

enum mp_status mp_chat_recognize(const char *name, const char *jinja, size_t bytes,
                                 struct mp_chat *chat)
{
    char *text = NULL;
    enum mp_status status = squeeze(jinja, bytes, &text);

    if (status != MP_OK)
        return status;
    if (prints_text(jinja, bytes))
        status = refuse(name, "it has text outside of expressions");
    else if (strstr(text, "<|im_start|>") != NULL)
        status = recognize_chatml(name, text, chat);
    else if (strstr(text, "[INST]") != NULL)
        status = recognize_mistral(name, text, chat);
    else
        status = refuse(name, "neither ChatML nor [INST]");
    free(text);
    return status;
}
