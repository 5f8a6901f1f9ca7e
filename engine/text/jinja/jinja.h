#ifndef MP_JINJA_H
#define MP_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/error.h"

/*
 * Jinja as chat templates use it, with the settings of Hugging Face transformers (trim_blocks,
 * lstrip_blocks, `break` and `continue`, its `tojson`).
 *
 * A template is a program from a file that nobody has looked at. It reads the variables that it is
 * given and writes text; it reaches nothing else: no files, no attributes of objects, no imports.
 * Its steps, memory and depth are bounded. What it asks for and is not here (a filter, a test, a
 * statement) is refused by name when it is parsed; its methods when they are called.
 *
 * Of each byte of the text it is known whether it comes from the template (with the variables
 * `own`) or from the variables `given`, however the template cuts and joins them.
 *
 * Not as in Python: upper(), lower(), title() and capitalize() change ASCII letters only; whole
 * numbers have 64 bits.
 *
 * Thread safety: a template is constant.
 */
struct mp_jinja;

/* `name` stands for the file in errors. MP_ERR_MODEL E_CHAT_TEMPLATE: what is wrong, by line. */
enum mp_status mp_jinja_parse(const char *name, const char *text, size_t bytes,
                              struct mp_jinja **jinja_p) MP_MUST_CHECK;
void mp_jinja_destroy(struct mp_jinja *jinja);

struct mp_jinja_output {
    char *text;       // (bytes)
    uint8_t *foreign; // (bytes): not 0: from `given`
    size_t bytes;
};

/*
 * Both variables are objects. `now_s` is the time that a template may ask for, in seconds since
 * 1970, shown in local time. MP_ERR_CONFIG E_CHAT_ROLES: the template says what it cannot render;
 * E_CHAT_RENDER: it has failed, or takes too much. On failure there is no output.
 */
enum mp_status mp_jinja_render(const struct mp_jinja *jinja, const json_t *own, const json_t *given,
                               uint64_t now_s, struct mp_jinja_output *out) MP_MUST_CHECK;
void mp_jinja_output_free(struct mp_jinja_output *out);

#endif
