/*
 * Descriptions of machines and models, and the costs that follow from them.
 *
 * A piece of work takes the time of its bytes or of its arithmetic, whichever is longer, and the
 * start of its kernels: three for a feed-forward network, ten for attention with norms and router.
 */
#include "policy/sim/sim_machine.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/options/opt.h"

#define TEXT_BYTES_MAX 65536
#define FFN_KERNELS 3
#define ATTENTION_KERNELS 10
#define NEEDED (-1.0) /* no default: must be given */

struct key {
    const char *name;
    size_t offset;
    double min, max;
    double dfl;
    bool whole;
};

#define KEY(type, field, min, max, dfl, whole)                     \
    {                                                              \
#field, offsetof(struct type, field), min, max, dfl, whole \
    }
#define M(field, min, max, dfl) KEY(mp_sim_machine, field, min, max, dfl, false)
#define S(field, min, max, dfl) KEY(mp_sim_model, field, min, max, dfl, false)
#define COUNT(field, min, max, dfl) KEY(mp_sim_model, field, min, max, dfl, true)

static const struct key machine_keys[] = {
    M(link_gbps, 0.001, 1e5, NEEDED),
    M(copy_us, 0, 1e6, NEEDED),
    M(copies, 1, 16, 3),
    M(device_gbps, 0.001, 1e6, NEEDED),
    M(device_gflops, 0.001, 1e7, NEEDED),
    M(launch_us, 0, 1e6, NEEDED),
    M(device_gib, 0.001, 1e6, NEEDED),
    M(cpu_gbps, 0, 1e5, 0),
    M(cpu_gflops, 0, 1e6, 0),
    M(cpu_start_us, 0, 1e6, 0),
    M(handoff_us, 0, 1e6, 0),
    M(in_place_gbps, 0, 1e5, 0),
    M(disk_gbps, 0, 1e5, 0),
    M(disk_us, 0, 1e6, 0),
    M(expert_us, 0, 1e9, 0),
    M(expert_token_us, 0, 1e9, 0),
    M(layer_us, 0, 1e9, 0),
    M(layer_token_us, 0, 1e9, 0),
    M(step_us, 0, 1e9, 0),
    M(step_token_us, 0, 1e9, 0),
    M(load_us, 0, 1e9, 0),
    M(latency_us, 0, 1e9, 0),
    M(predict_us, 0, 1e9, 0),
    M(group_us, 0, 1e9, 0),
    M(wake_us, 0, 1e9, 0),
    M(issue_us, 0, 1e9, 0),
    M(busy_factor, 1, 100, 1),
    M(fresh_us, 0, 1e9, 0),
};

static const struct key model_keys[] = {
    COUNT(layers, 1, 4096, NEEDED),
    COUNT(dense_layers, 0, 4096, 0),
    COUNT(experts, 1, 4096, NEEDED),
    COUNT(top_k, 1, 64, NEEDED),
    S(hidden, 1, 1e6, NEEDED),
    S(expert_ffn, 1, 1e6, NEEDED),
    S(shared_ffn, 0, 1e6, 0),
    S(dense_ffn, 0, 1e6, 0),
    S(vocabulary, 1, 1e7, NEEDED),
    S(attention_params, 1, 1e12, NEEDED),
    S(kv_bytes, 0, 1e9, NEEDED),
    S(expert_bits, 1, 32, 16),
    S(weight_bits, 1, 32, 16),
    S(skew, 0.25, 0.97, 0.5),
    S(variation, 0, 1, 0.2),
    S(overlap, 0, 0.9, 0.3),
    S(mass, 0.01, 0.99, 0.5),
    S(accuracy_gate, 0.05, 1, 0.75),
    S(accuracy_residual, 0.05, 1, 0.8),
    S(accuracy_partial, 0.05, 1, 0.8),
    S(accuracy_llapor, 0.05, 1, 0.9),
    S(llapor_us, 0, 1e6, 300),
};

/* Where something is wrong: "description 'x', line 3"; line 0 is none of its lines. */
#define PLACE_BYTES (MP_QUOTE_BYTES + 48)

static const char *place(char out[PLACE_BYTES], const char *name, unsigned line)
{
    char quoted[MP_QUOTE_BYTES], number[24] = "";

    if (line > 0)
        snprintf(number, sizeof(number), ", line %u", line);
    snprintf(out, PLACE_BYTES, "description '%s'%s", mp_quote(quoted, name, strlen(name)), number);
    return out;
}

static enum mp_status bad(const char *name, unsigned line, const char *what, const char *word)
{
    char quoted[MP_QUOTE_BYTES], where[PLACE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_DESCRIPTION", "%s: %s '%s'", place(where, name, line), what,
                   mp_quote(quoted, word, strlen(word)));
}

/* "key value" into its field; `seen` has one bit per key. */
static enum mp_status parse_line(const char *name, unsigned line, char *text,
                                 const struct key *keys, size_t count, void *out, uint64_t *seen)
{
    static const struct mp_opt number = {
        .name = "number", .kind = MP_OPT_F64, .f64_min = -1e300, .f64_max = 1e300
    };
    char *save = NULL;
    const char *word = strtok_r(text, " \t\r", &save);
    const char *value = strtok_r(NULL, " \t\r", &save);
    double parsed;
    size_t i = 0;

    if (word == NULL)
        return MP_OK;
    while (i < count && strcmp(keys[i].name, word) != 0)
        i++;
    if (i == count)
        return bad(name, line, "unknown key", word);
    if (*seen & UINT64_C(1) << i)
        return bad(name, line, "a second", word);
    if (value == NULL || !mp_opt_parse(&number, value, &parsed) || parsed < keys[i].min ||
        parsed > keys[i].max || (keys[i].whole && parsed != floor(parsed)) ||
        strtok_r(NULL, " \t\r", &save) != NULL) {
        char quoted[MP_QUOTE_BYTES], where[PLACE_BYTES];

        return mp_fail(MP_ERR_CONFIG, "E_DESCRIPTION",
                       "%s: %s is '%s', need a %snumber from %g to %g", place(where, name, line),
                       word, value != NULL ? mp_quote(quoted, value, strlen(value)) : "nothing",
                       keys[i].whole ? "whole " : "", keys[i].min, keys[i].max);
    }
    *seen |= UINT64_C(1) << i;
    *(double *)((char *)out + keys[i].offset) = parsed;
    return MP_OK;
}

static enum mp_status parse(const char *name, const char *text, const struct key *keys,
                            size_t count, void *out)
{
    uint64_t seen = 0;
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < count; i++)
        *(double *)((char *)out + keys[i].offset) = keys[i].dfl;
    for (unsigned line = 1; *text != '\0' && status == MP_OK; line++) {
        const size_t bytes = strcspn(text, "\n");
        char copy[512];

        if (bytes >= sizeof(copy))
            return bad(name, line, "a line of more than 511 bytes:", "");
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
        copy[strcspn(copy, "#")] = '\0';
        status = parse_line(name, line, copy, keys, count, out, &seen);
        text += bytes + (text[bytes] == '\n');
    }
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        if (keys[i].dfl < 0 && !(seen & UINT64_C(1) << i))
            return bad(name, 0, "nothing says", keys[i].name);
    }
    return status;
}

static enum mp_status check_machine(const struct mp_sim_machine *machine)
{
    return machine->cpu_gflops == 0 || machine->cpu_gbps > 0
               ? MP_OK
               : bad(machine->name, 0, "a CPU with cpu_gflops needs", "cpu_gbps");
}

enum mp_status mp_sim_machine_parse(const char *name, const char *text,
                                    struct mp_sim_machine *machine)
{
    enum mp_status status;

    snprintf(machine->name, sizeof(machine->name), "%s", name);
    status = parse(name, text, machine_keys, MP_ARRAY_LEN(machine_keys), machine);
    return status == MP_OK ? check_machine(machine) : status;
}

/* Bytes are added up in 64 bits elsewhere. */
static enum mp_status check_model(const struct mp_sim_model *model)
{
    if (model->top_k > model->experts)
        return bad(model->name, 0, "more experts per token than there are:", "top_k");
    if (model->layers * model->experts * (double)mp_sim_expert_bytes(model) > 1e18)
        return bad(model->name, 0, "more than 10^18 bytes of experts:", "layers, experts, hidden");
    return MP_OK;
}

enum mp_status mp_sim_model_parse(const char *name, const char *text, struct mp_sim_model *model)
{
    const enum mp_status status = parse(name, text, model_keys, MP_ARRAY_LEN(model_keys), model);

    snprintf(model->name, sizeof(model->name), "%s", name);
    return status == MP_OK ? check_model(model) : status;
}

static bool is_model_key(const char *word, size_t bytes)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(model_keys); i++) {
        if (strlen(model_keys[i].name) == bytes && !memcmp(model_keys[i].name, word, bytes))
            return true;
    }
    return false;
}

enum mp_status mp_sim_change(const char *changes, struct mp_sim_machine *machine,
                             struct mp_sim_model *model)
{
    static const char name[] = "--set";
    enum mp_status status = MP_OK;

    while (*changes != '\0' && status == MP_OK) {
        const size_t bytes = strcspn(changes, ",");
        char copy[128], *value;
        uint64_t seen = 0;

        snprintf(copy, sizeof(copy), "%.*s", (int)bytes, changes);
        value = strchr(copy, '=');
        if (bytes >= sizeof(copy) || value == NULL)
            return bad(name, 0, "need key=value,key=value, got", changes);
        *value = ' ';
        status = is_model_key(copy, (size_t)(value - copy))
                     ? parse_line(name, 0, copy, model_keys, MP_ARRAY_LEN(model_keys), model, &seen)
                     : parse_line(name, 0, copy, machine_keys, MP_ARRAY_LEN(machine_keys), machine,
                                  &seen);
        changes += bytes + (changes[bytes] == ',');
    }
    if (status == MP_OK)
        status = check_machine(machine);
    return status == MP_OK ? check_model(model) : status;
}

static enum mp_status read_file(const char *path, char text[TEXT_BYTES_MAX])
{
    char quoted[MP_QUOTE_BYTES];
    FILE *file = fopen(path, "re");
    size_t bytes;
    bool bad_file;

    if (file == NULL)
        return mp_fail(MP_ERR_IO, "E_DESCRIPTION_READ", "cannot read description '%s': %s",
                       mp_quote(quoted, path, strlen(path)), strerror(errno));
    bytes = fread(text, 1, TEXT_BYTES_MAX, file);
    bad_file = ferror(file) || bytes == TEXT_BYTES_MAX || memchr(text, '\0', bytes) != NULL;
    fclose(file);
    if (bad_file)
        return mp_fail(MP_ERR_IO, "E_DESCRIPTION_READ",
                       "cannot read description '%s': not a text file of less than 64 KiB",
                       mp_quote(quoted, path, strlen(path)));
    text[bytes] = '\0';
    return MP_OK;
}

/* *text_p: the built-in text of that name, or `buffer`, filled from the file. */
static enum mp_status find_text(const struct mp_sim_text *texts, const char *name,
                                char buffer[TEXT_BYTES_MAX], const char **text_p)
{
    char quoted[MP_QUOTE_BYTES], known[1024];
    size_t used = 0;

    *text_p = buffer;
    if (strpbrk(name, "/") != NULL)
        return read_file(name, buffer);
    known[0] = '\0';
    for (; texts->name != NULL; texts++) {
        if (!strcmp(texts->name, name)) {
            *text_p = texts->text;
            return MP_OK;
        }
        if (used < sizeof(known))
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
                                     used > 0 ? ", " : "", texts->name);
    }
    return mp_fail(MP_ERR_CONFIG, "E_DESCRIPTION",
                   "unknown description '%s'; known are %s, or give a path with a slash",
                   mp_quote(quoted, name, strlen(name)), known);
}

enum mp_status mp_sim_machine_read(const char *name, struct mp_sim_machine *machine)
{
    char buffer[TEXT_BYTES_MAX];
    const char *text;
    const enum mp_status status = find_text(mp_sim_machines, name, buffer, &text);

    return status == MP_OK ? mp_sim_machine_parse(name, text, machine) : status;
}

enum mp_status mp_sim_model_read(const char *name, struct mp_sim_model *model)
{
    char buffer[TEXT_BYTES_MAX];
    const char *text;
    const enum mp_status status = find_text(mp_sim_models, name, buffer, &text);

    return status == MP_OK ? mp_sim_model_parse(name, text, model) : status;
}

/* In ns; what would take more than eleven days takes these. */
static uint64_t us(double microseconds)
{
    return (uint64_t)llround(fmin(microseconds, 1e12) * 1000);
}

static double expert_weights(const struct mp_sim_model *m)
{
    return 3 * m->hidden * m->expert_ffn;
}

uint64_t mp_sim_expert_bytes(const struct mp_sim_model *m)
{
    return (uint64_t)ceil(expert_weights(m) * m->expert_bits / 8);
}

uint64_t mp_sim_load_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m)
{
    const double bytes = (double)mp_sim_expert_bytes(m);

    if (h->load_us > 0)
        return us(h->load_us);
    if (h->disk_gbps > 0)
        return us(h->disk_us * h->copies + bytes / (h->disk_gbps * 1e3));
    return us(h->copy_us * h->copies + bytes / (h->link_gbps * 1e3));
}

/* us of `weights` weights of `bits` bits, each used once for every token. */
static double work_us(double weights, double bits, double tokens, double gbps, double gflops)
{
    const double read_us = weights * bits / 8 / (gbps * 1e3);
    const double compute_us = 2 * weights * tokens / (gflops * 1e3);

    return read_us > compute_us ? read_us : compute_us;
}

uint64_t mp_sim_device_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                          uint32_t tokens)
{
    if (h->expert_us > 0)
        return us(h->expert_us + tokens * h->expert_token_us);
    return us(FFN_KERNELS * h->launch_us +
              work_us(expert_weights(m), m->expert_bits, tokens, h->device_gbps, h->device_gflops));
}

/* a + b * tokens, as the papers have it: the weights are read once, arithmetic is added. */
uint64_t mp_sim_cpu_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                       uint32_t tokens)
{
    return us(h->cpu_start_us + (double)mp_sim_expert_bytes(m) / (h->cpu_gbps * 1e3) +
              2 * expert_weights(m) * tokens / (h->cpu_gflops * 1e3));
}

uint64_t mp_sim_in_place_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                            uint32_t tokens)
{
    return us(FFN_KERNELS * h->launch_us + work_us(expert_weights(m), m->expert_bits, tokens,
                                                   h->in_place_gbps, h->device_gflops));
}

uint64_t mp_sim_router_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                          uint32_t tokens)
{
    if (h->predict_us > 0)
        return us(h->predict_us);
    return us(h->launch_us + work_us(m->hidden * m->experts, m->weight_bits, tokens, h->device_gbps,
                                     h->device_gflops));
}

uint64_t mp_sim_layer_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                         uint32_t tokens, uint32_t sequences, uint32_t context)
{
    const double cache_us = (double)sequences * context * m->kv_bytes / (h->device_gbps * 1e3);
    const double score_us = 4.0 * tokens * context * m->hidden / (h->device_gflops * 1e3);

    if (h->layer_us > 0)
        return us(h->layer_us + tokens * h->layer_token_us);
    return us(ATTENTION_KERNELS * h->launch_us + (cache_us > score_us ? cache_us : score_us) +
              work_us(m->attention_params + m->hidden * m->experts, m->weight_bits, tokens,
                      h->device_gbps, h->device_gflops));
}

uint64_t mp_sim_ffn_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m, double ffn,
                       uint32_t tokens)
{
    if (ffn <= 0 || h->layer_us > 0)
        return 0; /* a measured layer has it in */
    return us(FFN_KERNELS * h->launch_us + work_us(3 * m->hidden * ffn, m->weight_bits, tokens,
                                                   h->device_gbps, h->device_gflops));
}

uint64_t mp_sim_head_ns(const struct mp_sim_machine *h, const struct mp_sim_model *m,
                        uint32_t tokens, uint32_t sequences)
{
    if (h->step_us > 0 || h->layer_us > 0)
        return us(h->step_us + tokens * h->step_token_us);
    return us(h->launch_us + work_us(m->vocabulary * m->hidden, m->weight_bits, sequences,
                                     h->device_gbps, h->device_gflops));
}

uint64_t mp_sim_other_bytes(const struct mp_sim_model *m)
{
    const double all = m->layers + m->dense_layers;
    const double weights = 2 * m->vocabulary * m->hidden + all * m->attention_params +
                           m->layers * m->hidden * (m->experts + 3 * m->shared_ffn) +
                           m->dense_layers * 3 * m->hidden * m->dense_ffn;

    return (uint64_t)(weights * m->weight_bits / 8);
}
