#ifndef MP_ENGINE_CHAT_H
#define MP_ENGINE_CHAT_H

#include "engine/text/tokenizer.h"

/*
 * The prompt formats of chat models. A model ships its format as a Jinja program; none is ever
 * executed. The program is recognised by what it contains, and the format is rendered by code:
 *
 *   chatml   <|im_start|>ROLE\nTEXT<|im_end|>\n for each message, then <|im_start|>assistant\n.
 *            If the program names a default system prompt ("You are a helpful assistant." and the
 *            Qwen 2.5 one are known), it goes first when the caller gives no system message.
 *            For programs that remove text before </think> from earlier answers, so does the code.
 *   mistral  <s>[INST] TEXT [/INST]ANSWER</s>..., roles must alternate beginning with the user; the
 *            blanks around TEXT and ANSWER are those of the program that was recognised. A system
 *            message is put before the first or last user text where the program does so, else
 *            refused.
 *
 * Anything else is refused with a hint.
 */
struct mp_chat;

#define MP_CHAT_TEMPLATE_BYTES_MAX (1u << 20)

enum mp_chat_role { MP_CHAT_SYSTEM, MP_CHAT_USER, MP_CHAT_ASSISTANT };

struct mp_chat_message {
    enum mp_chat_role role;
    const char *text;
    size_t bytes;
};

/* A growing list of spans; all zero is empty. The texts are not owned. */
struct mp_spans {
    struct mp_span *spans;
    size_t count;
    size_t capacity;
};

void mp_spans_free(struct mp_spans *spans);

/*
 * Recognise the template of a model: chat_template.jinja in its directory, else "chat_template" in
 * tokenizer_config.json (a string, or a list of named ones of which "default" counts); in a GGUF
 * file tokenizer.chat_template.
 * MP_ERR_MODEL E_CHAT_NONE if there is none, E_CHAT_TEMPLATE if it is not known.
 */
enum mp_status mp_chat_load(const char *model, struct mp_chat **chat_p) MP_MUST_CHECK;

/* The same for the text of a template; `name` stands for the file in error texts. */
enum mp_status mp_chat_parse(const char *name, const char *jinja, size_t bytes, const char *bos,
                             const char *eos, struct mp_chat **chat_p) MP_MUST_CHECK;

void mp_chat_destroy(struct mp_chat *chat);

/* The name of the format, for reports: "chatml", "mistral", ... */
const char *mp_chat_name(const struct mp_chat *chat);

/*
 * Append the prompt for `count` messages to `out`: the format's own text with `special` set, the
 * messages' texts without. The spans point into `chat` and into the messages. Encode them with
 * mp_tokenizer_encode_spans() without ADD_SPECIAL: the format brings its own <s>. `answer`: end
 * with the beginning of the assistant's answer. MP_ERR_CONFIG E_CHAT_ROLES for an order of roles
 * that the format does not have.
 */
enum mp_status mp_chat_render(const struct mp_chat *chat, const struct mp_chat_message *messages,
                              size_t count, bool answer, struct mp_spans *out) MP_MUST_CHECK;

#endif
