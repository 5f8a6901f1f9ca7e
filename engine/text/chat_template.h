#ifndef MP_ENGINE_CHAT_TEMPLATE_H
#define MP_ENGINE_CHAT_TEMPLATE_H

#include "engine/text/chat.h"

/* The properties recognised in a template; private to chat.c and chat_template.c. */
enum mp_chat_kind { MP_CHAT_CHATML, MP_CHAT_MISTRAL };
enum mp_chat_system { MP_CHAT_SYSTEM_REFUSED, MP_CHAT_SYSTEM_FIRST, MP_CHAT_SYSTEM_LAST };

#define MP_CHAT_LITERAL_BYTES 64

struct mp_chat {
    enum mp_chat_kind kind;
    char *bos, *eos; /* texts of the tokens; may be NULL for chatml */

    /* chatml */
    const char *default_system; /* static; NULL if none */
    bool open_end;              /* without `answer` the last message is not closed */
    bool opens_thinking;        /* the answer begins with <think> */
    bool drops_thinking;        /* text before </think> is removed from earlier answers */

    /* mistral: the text around messages */
    char user_before[MP_CHAT_LITERAL_BYTES], user_behind[MP_CHAT_LITERAL_BYTES];
    char answer_before[MP_CHAT_LITERAL_BYTES], answer_behind[MP_CHAT_LITERAL_BYTES];
    bool trims_answers;         /* blanks around earlier answers are removed */
    enum mp_chat_system system; /* whether a system text goes before the first or last user's */
};

/* Fill in all but bos and eos, which must be set. `name` is for messages. */
enum mp_status mp_chat_recognize(const char *name, const char *jinja, size_t bytes,
                                 struct mp_chat *chat) MP_MUST_CHECK;

#endif
