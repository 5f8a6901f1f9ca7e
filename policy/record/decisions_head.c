/*
 * The head of a decision log: the shape, the policies with their options, costs and calibration.
 * The file is untrusted.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "policy/record/decisions_replay_int.h"
#include "policy/regular.h"
#include "vmm/base/error.h"

enum mp_status mp_log_bad(const struct mp_log_replay *r, const char *what)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_DECISION_LOG", "decision log '%s', call %" PRIu64 ": %s",
                   mp_quote(quoted, r->path, strlen(r->path)), r->report->calls, what);
}

static enum mp_status other_version(const struct mp_log_replay *r, const char *what,
                                    const char *name)
{
    char quoted[MP_QUOTE_BYTES], quoted_name[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_UNSUPPORTED, "E_DECISION_VERSION",
                   "decision log '%s' was written by another version of moepager: %s '%s'",
                   mp_quote(quoted, r->path, strlen(r->path)), what,
                   mp_quote(quoted_name, name, strlen(name)));
}

/* "key value": is this the next line? *value_p then points behind the key. */
static enum mp_status take_line(struct mp_log_replay *r, const char *key, const char **value_p)
{
    const size_t bytes = strlen(key);
    size_t end;

    *value_p = NULL;
    if (!r->held) {
        if (fgets(r->line, sizeof(r->line), r->file) == NULL)
            return ferror(r->file) ? mp_regular_fail(r->path, "read", errno)
                                   : mp_log_bad(r, "the head is cut off");
        end = strlen(r->line);
        if (end == 0 || r->line[end - 1] != '\n')
            return mp_log_bad(r, "a line of the head is too long, holds a NUL or is cut off");
        r->line[end - 1] = '\0';
    }
    r->held = strncmp(r->line, key, bytes) != 0 || r->line[bytes] != ' ';
    if (!r->held)
        *value_p = r->line + bytes + 1;
    return MP_OK;
}

static enum mp_status take_number(struct mp_log_replay *r, const char *key, uint64_t min,
                                  uint64_t max, uint64_t *number_p)
{
    const struct mp_opt opt = { .name = key, .kind = MP_OPT_U64, .min = min, .max = max };
    const char *value;
    enum mp_status status = take_line(r, key, &value);

    if (status == MP_OK && (value == NULL || !mp_opt_parse(&opt, value, number_p)))
        return mp_log_bad(r, "a number of the head is missing or out of range");
    return status;
}

static enum mp_status read_shape(struct mp_log_replay *r, bool *calibrated_p)
{
    uint64_t abi, layers = 1, experts = 1, top_k, tokens, slots, seed, bytes, slices, costs;
    uint64_t calibrated;
    enum mp_status status = take_number(r, "abi", 0, UINT32_MAX, &abi);

    if (status == MP_OK && abi != MP_POLICY_ABI)
        return other_version(r, "the policies' interface is number", r->line + strlen("abi "));
    if (status == MP_OK)
        status = take_number(r, "layers", 1, 4096, &layers);
    if (status == MP_OK)
        status = take_number(r, "experts", 1, 4096, &experts);
    if (status == MP_OK)
        status = take_number(r, "top_k", 1, experts, &top_k);
    if (status == MP_OK)
        status = take_number(r, "tokens_max", 1, 65536, &tokens);
    if (status == MP_OK)
        status = take_number(r, "slots", 1, MP_CODE_SLOTS_MAX, &slots);
    if (status == MP_OK)
        status = take_number(r, "unit_bytes", 1, MP_CODE_EXPERT_BYTES_MAX, &bytes);
    if (status == MP_OK)
        status = take_number(r, "seed", 0, UINT64_MAX, &seed);
    if (status == MP_OK)
        status = take_number(r, "slices", 0, 16, &slices);
    if (status == MP_OK)
        status = take_number(r, "costs", 0, 1, &costs);
    if (status == MP_OK)
        status = take_number(r, "calibration", 0, 1, &calibrated);
    if (status != MP_OK)
        return status;
    *calibrated_p = calibrated != 0;
    r->shape = (struct mp_shape){
        .layers = (uint32_t)layers,
        .experts = (uint32_t)experts,
        .top_k = (uint32_t)top_k,
        .tokens_max = (uint32_t)tokens,
        .slots = (uint32_t)slots,
        .expert_bytes = bytes,
        .seed = seed,
        .costs = costs ? &r->code.shape_costs.costs : NULL,
        .slices = (uint32_t)slices,
    };
    return MP_OK;
}

/* "option NAME VALUE", once for each option of the policy and in their order. */
static enum mp_status read_options(struct mp_log_replay *r, const struct mp_policy_info *info,
                                   unsigned kind)
{
    struct mp_opt_group *group = &r->groups[kind];

    if (info->opts == NULL)
        return MP_OK;
    for (const struct mp_opt *opt = info->opts; opt->name != NULL; opt++) {
        const size_t bytes = strlen(opt->name);
        const char *value;
        enum mp_status status = take_line(r, "option", &value);

        if (status != MP_OK)
            return status;
        if (value == NULL || strncmp(value, opt->name, bytes) != 0 || value[bytes] != ' ' ||
            !mp_opt_parse(opt, value + bytes + 1, (char *)group->config + opt->offset))
            return other_version(r, "it does not say this option as now:", opt->name);
    }
    return MP_OK;
}

static enum mp_status read_policy(struct mp_log_replay *r, unsigned kind)
{
    struct mp_opt_group *group = &r->groups[kind];
    const struct mp_policy_info *info;
    const char *name;
    enum mp_status status = take_line(r, mp_policy_kind_name(kind), &name);

    if (status != MP_OK)
        return status;
    if (name == NULL)
        return mp_log_bad(r, "a policy is missing in the head");
    info = mp_policy_find(kind, name);
    if (info == NULL)
        return other_version(r, "there is no policy", name);
    r->chosen.policy[kind] = info->name;
    snprintf(r->report->policy[kind], sizeof(r->report->policy[kind]), "%s", info->name);
    /* A prefix in any case: it ends the list otherwise. */
    *group = (struct mp_opt_group){ .prefix = "", .table = info->opts };
    if (info->config_size == 0)
        return MP_OK;
    group->config = calloc(1, info->config_size);
    return group->config != NULL ? read_options(r, info, kind)
                                 : mp_fail_no_memory("a policy's options", info->config_size);
}

static enum mp_status read_version(struct mp_log_replay *r)
{
    const size_t magic = strlen(MP_DECISIONS_MAGIC);
    char *version = r->line + magic;

    if (fgets(r->line, sizeof(r->line), r->file) == NULL ||
        strncmp(r->line, MP_DECISIONS_MAGIC, magic) != 0)
        return mp_log_bad(r,
                          "the first line should be '" MP_DECISIONS_MAGIC MP_DECISIONS_VERSION "'");
    if (!strcmp(version, MP_DECISIONS_VERSION "\n"))
        return MP_OK;
    version[strcspn(version, "\n")] = '\0';
    if (feof(r->file))
        return mp_log_bad(r, "the head is cut off");
    return other_version(r, "the format has the number " MP_DECISIONS_VERSION " now, not", version);
}

enum mp_status mp_log_read_head(struct mp_log_replay *r)
{
    bool calibrated = false;
    uint64_t used;
    enum mp_status status = read_version(r);

    if (status == MP_OK)
        status = read_shape(r, &calibrated);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT && status == MP_OK; kind++)
        status = read_policy(r, kind);
    if (status != MP_OK)
        return status;
    if (fgets(r->line, sizeof(r->line), r->file) == NULL || strcmp(r->line, "calls\n") != 0)
        return mp_log_bad(r, "the head should end with 'calls'");
    used = (uint64_t)ftello(r->file);
    status = mp_code_init(&r->code, r->file, true, r->file_bytes > used ? r->file_bytes - used : 0,
                          &r->shape);
    if (status != MP_OK)
        return status;
    mp_code_shape_costs(&r->code);
    if (calibrated) {
        mp_code_calibration(&r->code, &r->calibration);
        r->shape.calibration = &r->calibration;
    }
    if (r->code.problem != NULL)
        return r->code.no_memory ? mp_fail_no_memory("a decision log", r->code.left)
                                 : mp_log_bad(r, r->code.problem);
    return mp_policies_create(&r->chosen, &r->shape, r->groups, &r->set);
}
