/*
 * Names of expert tensors: a layer's number, then one of a few words.
 */
#include "vmm/format/expert_names.h"

#include <string.h>

#include "vmm/base/assert.h"

/* Of all experts in one tensor, and of one; what follows a word is '.', '_' or the end. */
static const struct {
    const char *word;
    enum mp_expert_part part;
} parts[] = {
    { "gate_up_proj", MP_EXPERT_GATE_UP },
    { "gate_proj", MP_EXPERT_GATE },
    { "up_proj", MP_EXPERT_UP },
    { "down_proj", MP_EXPERT_DOWN },
    { "w1", MP_EXPERT_GATE },
    { "w2", MP_EXPERT_DOWN },
    { "w3", MP_EXPERT_UP },
};

static const struct {
    const char *word;
    enum mp_expert_part part;
} gguf_parts[] = {
    { "ffn_gate_up", MP_EXPERT_GATE_UP },
    { "ffn_gate", MP_EXPERT_GATE },
    { "ffn_up", MP_EXPERT_UP },
    { "ffn_down", MP_EXPERT_DOWN },
};

/* A number of at most 9 digits at *at, which moves behind it. */
static bool take_number(const char **at, uint32_t *number_p)
{
    uint32_t number = 0;
    unsigned digits = 0;

    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (++digits > 9)
            return false;
        number = number * 10 + (uint32_t)(**at - '0');
    }
    if (digits == 0)
        return false;
    *number_p = number;
    return true;
}

static bool take_word(const char **at, const char *word)
{
    if (strncmp(*at, word, strlen(word)) != 0)
        return false;
    *at += strlen(word);
    return true;
}

/* A weight has nothing behind its word, or says so. */
static bool is_weight(const char *rest)
{
    return *rest == '\0' || strcmp(rest, ".weight") == 0 || strcmp(rest, "_blocks") == 0;
}

static bool parse_gguf(const char *name, struct mp_expert_name *parsed)
{
    const char *at = name;

    if (!take_word(&at, "blk.") || !take_number(&at, &parsed->layer) || !take_word(&at, "."))
        return false;
    for (unsigned i = 0; i < sizeof(gguf_parts) / sizeof(gguf_parts[0]); i++) {
        const char *rest = at;

        if (!take_word(&rest, gguf_parts[i].word))
            continue;
        parsed->part = gguf_parts[i].part;
        if (take_word(&rest, "_exps"))
            parsed->all = true;
        else if (!take_word(&rest, ".") || !take_number(&rest, &parsed->expert))
            continue; /* ffn_gate is the beginning of ffn_gate_up, too */
        parsed->weight = is_weight(rest);
        return parsed->weight || *rest == '.';
    }
    return false;
}

static bool parse_hugging_face(const char *name, struct mp_expert_name *parsed)
{
    const char *at = strstr(name, "layers.");

    if (at == NULL || (at != name && at[-1] != '.'))
        return false;
    at += strlen("layers.");
    if (!take_number(&at, &parsed->layer))
        return false;
    at = strstr(at, ".experts.");
    if (at == NULL)
        return false;
    at += strlen(".experts.");
    parsed->all = !take_number(&at, &parsed->expert);
    if (!parsed->all && !take_word(&at, "."))
        return false;
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!take_word(&at, parts[i].word))
            continue;
        parsed->part = parts[i].part;
        parsed->weight = is_weight(at);
        return parsed->weight || *at == '.' || *at == '_';
    }
    return false;
}

bool mp_expert_name_parse(const char *name, struct mp_expert_name *parsed_p)
{
    struct mp_expert_name parsed = { 0 };

    mp_assert(name != NULL);
    if (!parse_gguf(name, &parsed)) {
        parsed = (struct mp_expert_name){ 0 };
        if (!parse_hugging_face(name, &parsed))
            return false;
    }
    *parsed_p = parsed;
    return true;
}
