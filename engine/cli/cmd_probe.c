/*
 * `moepager probe`: measures this machine's GPU, link and CPU (engine/probe/probe.h).
 */
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/model/config.h"
#include "engine/probe/probe.h"
#include "engine/session/device_facts.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/output/json_out.h"

/* Of "cuda" and "cuda:N"; "auto" is the first one. */
static enum mp_status device_number(const char *text, unsigned *ordinal_p)
{
    const struct mp_opt number = { .name = "device", .kind = MP_OPT_U64, .max = 1023 };
    char quoted[MP_QUOTE_BYTES];
    uint64_t value = 0;

    if (strcmp(text, "auto") != 0 && strcmp(text, "cuda") != 0 &&
        (strncmp(text, "cuda:", 5) != 0 || !mp_opt_parse(&number, text + 5, &value)))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--device: got '%s', but what is measured is a GPU: need cuda or cuda:N",
                       mp_quote(quoted, text, strlen(text)));
    *ordinal_p = (unsigned)value;
    return MP_OK;
}

static enum mp_status model_shape(const char *path, struct mp_probe_shape *shape)
{
    struct mp_model_config model;
    struct mp_checkpoint *checkpoint;
    struct mp_weights *weights = NULL;
    enum mp_status status = mp_checkpoint_open(path, &checkpoint);

    if (status != MP_OK)
        return status;
    status = mp_model_config_load(checkpoint, &model);
    if (status == MP_OK)
        status = mp_weights_describe(checkpoint, &model, &weights);
    if (status == MP_OK)
        *shape = mp_device_facts_shape(&model, weights);
    mp_weights_destroy(weights);
    mp_checkpoint_close(checkpoint);
    return status;
}

static enum mp_status refuse_types(const char *text)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                   "--types: got '%s', need types such as bf16 or q4_k,q6_k, whose blocks fit the "
                   "expert's hidden and channels",
                   mp_quote(quoted, text, strlen(text)));
}

/* The experts of the model, or the numbers of the command line. */
static enum mp_status choose_shape(const struct mp_args *args, struct mp_probe_shape *shape)
{
    const char *types = args->types;
    enum mp_status status = MP_OK;

    *shape = (struct mp_probe_shape){ 2048, 768, 8, MP_WTYPE_BF16, MP_WTYPE_BF16 };
    if (args->model != NULL)
        status = model_shape(args->model, shape);
    if (args->hidden != 0)
        shape->hidden = (uint32_t)args->hidden;
    if (args->channels != 0)
        shape->channels = (uint32_t)args->channels;
    if (args->experts != 0)
        shape->experts = (uint32_t)args->experts;
    if (types == NULL && (args->hidden != 0 || args->channels != 0))
        types = "bf16";
    if (status == MP_OK && types != NULL && !mp_probe_parse_types(types, shape))
        status = refuse_types(types);
    return status;
}

/* From the cache, or measured and put there. */
static enum mp_status get_probe(const struct mp_args *args, const char *cache_dir, unsigned ordinal,
                                const struct mp_probe_shape *shape, struct mp_probe *probe)
{
    struct mp_cuda_device device;
    const struct mp_cuda *cuda;
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK && ordinal < cuda->devices && !args->fresh) {
        status = mp_cuda_describe(cuda, ordinal, &device);
        if (status == MP_OK && mp_probe_load(cache_dir, device.uuid, cuda->version, shape, probe))
            return MP_OK;
    }
    if (status != MP_OK)
        return status;
    status = mp_probe_run("/proc/self/exe", ordinal, shape, probe);
    if (status == MP_OK && strcmp(cache_dir, "none") != 0 && !mp_probe_store(cache_dir, probe))
        mp_log_warn("probe", "what was measured could not be kept in the cache directory");
    return status;
}

enum mp_status mp_cmd_probe(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_probe_shape shape;
    struct mp_probe probe;
    struct mp_json_out json;
    unsigned ordinal = 0;
    enum mp_status status = device_number(settings->run.device, &ordinal);

    if (status == MP_OK && args->skip != NULL && !args->child)
        status = mp_fail(MP_ERR_CONFIG, "E_USAGE", "--skip needs --child");
    if (status == MP_OK)
        status = choose_shape(args, &shape);
    if (status == MP_OK && args->child)
        return mp_probe_measure(ordinal, &shape, args->skip != NULL ? args->skip : "", stdout);
    if (status == MP_OK)
        status = get_probe(args, settings->run.cache_dir, ordinal, &shape, &probe);
    if (status != MP_OK)
        return status;
    if (args->json) {
        mp_json_begin(&json, stdout, true);
        mp_probe_json(&probe, &json);
        mp_json_end(&json);
    } else {
        mp_probe_print(&probe, stdout);
    }
    return mp_check_stdout();
}
