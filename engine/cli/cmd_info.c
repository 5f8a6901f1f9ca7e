/*
 * `moepager info`: the machine, what this build can do, and the sizes of a model.
 */
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/model/arch/arch.h"
#include "engine/model/drafting.h"
#include "engine/session/model_name.h"
#include "kernels/cpu/quant/quant.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"
#include "vmm/base/version.h"
#include "vmm/output/json_out.h"
#include "vmm/topo/memory_room.h"
#include "vmm/topo/pci_link.h"

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Whom a run asks for the node, in the same order: hwloc, the kernel, the driver. -1: nobody knows.
 */
static int node_of(const struct mp_topology *topology, const struct mp_cuda_device *device,
                   const struct mp_pci_link *link)
{
    const unsigned near = mp_topology_pci_node(topology, device->pci);

    if (near != MP_TOPOLOGY_ANY_NODE)
        return (int)topology->nodes[near].os_index;
    return link->numa_node >= 0 ? link->numa_node : device->host_numa_id;
}

static void print_link(const struct mp_topology *topology, const struct mp_cuda_device *device)
{
    struct mp_pci_link link;
    int node;

    mp_pci_link_read("", device->pci, &link);
    node = node_of(topology, device, &link);
    if (node >= 0)
        printf("NUMA node %d, link ", node);
    else
        printf("NUMA node not known, link ");
    if (link.width > 0 && link.speed[0] != '\0')
        printf("x%u of %s", link.width, link.speed);
    else
        printf("not known");
}

/* The devices that the driver shows, or why there are none. */
static void print_cuda(const struct mp_topology *topology)
{
    struct mp_cuda_device device;
    const struct mp_cuda *cuda;

    printf("CUDA devices\n");
    if (mp_cuda_get(&cuda) != MP_OK) {
        printf("  none: %s\n", mp_error_last()->text);
        mp_error_clear(); /* is no failure of this command */
        return;
    }
    for (unsigned i = 0; i < cuda->devices; i++) {
        if (mp_cuda_describe(cuda, i, &device) != MP_OK) {
            printf("  cuda:%u     %s\n", i, mp_error_last()->text);
            continue;
        }
        printf("  cuda:%u     %s, %.0f MiB, capability %d.%d, PCI %s, ", i, device.name,
               mib(device.memory_bytes), device.capability / 10, device.capability % 10,
               device.pci);
        print_link(topology, &device);
        printf(", driver %d.%d\n", cuda->version / 1000, cuda->version % 1000 / 10);
    }
}

/* The variant of kernels/cpu/quant that is used. */
static const char *quantised_by(void)
{
    const struct mp_quant *quant = mp_quant_best(mp_kernels_best()->name);

    return quant != NULL ? quant->name : mp_kernels_ref.name;
}

/* The kernels of a class. */
static const char *math_by(enum mp_math math)
{
    const struct mp_kernels *kernels = mp_kernels_of(math);

    return kernels != NULL ? kernels->name : NULL;
}

static const char *or_none(const char *name)
{
    return name != NULL ? name : "none";
}

static void print_machine(const struct mp_topology *topology)
{
    struct mp_memory_room room;

    mp_topology_print(topology, stdout);
    mp_memory_room_read("", &room);
    printf("RAM that a run can take: %.0f MiB\n\nkernels  ", mib(room.room_bytes));
    for (size_t i = 0; mp_kernels_names[i] != NULL; i++)
        printf(" %s%s", mp_kernels_names[i],
               mp_kernels_find(mp_kernels_names[i]) != NULL ? "" : " (not on this CPU)");
    printf(", math f32 by %s, native by %s, amx by %s\nweights  ", mp_kernels_best()->name,
           or_none(math_by(MP_MATH_NATIVE)), or_none(math_by(MP_MATH_AMX)));
    for (int i = 0; i < MP_WTYPE_COUNT; i++)
        printf(" %s", mp_wtype_name((enum mp_wtype)i));
    printf("; quantised ones by %s\nbackends\n", quantised_by());
    for (size_t i = 0; mp_backends[i] != NULL; i++)
        printf("  %-12s %s\n", mp_backends[i]->name, mp_backends[i]->summary);
    print_cuda(topology);
}

static void print_policies(void)
{
    const struct mp_policy_info *info;

    printf("profiles\n");
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++)
        printf("  %-12s %s%s\n", p->name, p->summary, p == mp_profiles ? " (default)" : "");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        printf("%s policies\n", mp_policy_kind_name(kind));
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++)
            printf("  %-12s %s\n", info->name, info->summary);
    }
}

static uint64_t expert_size(const struct mp_session *s)
{
    return s->memory.expert_bytes / ((uint64_t)s->model.moe_layers * s->model.experts);
}

static uint64_t token_cycle(const struct mp_session *s)
{
    return expert_size(s) * s->model.moe_layers * s->model.experts_per_token;
}

static void print_model(const struct mp_session *s)
{
    const struct mp_model_config *m = &s->model;
    const struct mp_memory_plan *plan = &s->memory;

    printf("model           %s, %u layers (%u with experts), hidden %u, vocabulary %u\n",
           m->arch->name, m->layers, m->moe_layers, m->hidden, m->vocab);
    printf("attention       %u heads, %u key-value heads of %u, made for %u positions\n", m->heads,
           m->kv_heads, m->head_dim, m->positions_max);
    printf("experts         %u per layer, %u per token, %u channels; shared expert: %u channels\n",
           m->experts, m->experts_per_token, m->expert_ffn, m->shared_ffn);
    printf("one expert      %.3f MiB (%llu bytes)\n", mib(expert_size(s)),
           (unsigned long long)expert_size(s));
    if (plan->slices > 1)
        printf("slices          %u of each expert, read and kept one by one\n", plan->slices);
    if (mp_drafting_there(s->checkpoint, m))
        printf("drafting layer  one behind the others, not counted here: --draft-model mtp\n");
    printf("all experts     %.1f MiB (%llu bytes)\n", mib(plan->expert_bytes),
           (unsigned long long)plan->expert_bytes);
    printf("token cycle     %.1f MiB (%llu bytes): what one token touches over all layers\n",
           mib(token_cycle(s)), (unsigned long long)token_cycle(s));
    printf("smallest budget %llu bytes, everything resident %llu bytes\n",
           (unsigned long long)plan->smallest_bytes, (unsigned long long)plan->full_bytes);
    printf(
        "other weights   %.1f MiB, KV cache (%s) for %u positions %.1f MiB, activations %.1f MiB\n",
        mib(plan->weights_bytes), mp_wtype_name(s->engine_config.kv_type), s->engine_config.ctx,
        mib(plan->kv_bytes), mib(plan->state_bytes));
    printf("a run would use %.1f MiB for experts, read %s the page cache\n",
           mib(plan->budget_bytes), s->direct_io ? "past" : "through");
    if (s->device.cuda)
        printf(
            "on the device   experts by %s%s%s%s; granules waste %.1f %% of the memory of all experts; "
            "%.1f of %.1f MiB free\n",
            plan->window_bytes > 0 ? "window" : "table", s->addressing[0] != '\0' ? " (" : "",
            s->addressing, s->addressing[0] != '\0' ? ")" : "",
            100.0 * (double)plan->waste_bytes /
                (double)(plan->full_bytes > 0 ? plan->full_bytes : 1),
            mib(plan->device_free_bytes), mib(plan->device_total_bytes));
    if (plan->total_bytes > plan->room_bytes)
        printf("too large       %.1f MiB in all, but a run can take %.1f MiB; lower --budget, "
               "--ctx or --prefill-tokens\n",
               mib(plan->total_bytes), mib(plan->room_bytes));
}

static void json_model(const struct mp_session *s, struct mp_json_out *json)
{
    const struct mp_model_config *m = &s->model;

    mp_json_object_begin(json, "model");
    mp_json_put_string(json, "architecture", m->arch->name);
    mp_json_put_u64(json, "layers", m->layers);
    mp_json_put_u64(json, "moe_layers", m->moe_layers);
    mp_json_put_u64(json, "hidden", m->hidden);
    mp_json_put_u64(json, "vocabulary", m->vocab);
    mp_json_put_u64(json, "heads", m->heads);
    mp_json_put_u64(json, "kv_heads", m->kv_heads);
    mp_json_put_u64(json, "head_dim", m->head_dim);
    mp_json_put_u64(json, "positions_max", m->positions_max);
    mp_json_put_u64(json, "experts", m->experts);
    mp_json_put_u64(json, "experts_per_token", m->experts_per_token);
    mp_json_put_u64(json, "expert_ffn", m->expert_ffn);
    mp_json_put_u64(json, "shared_ffn", m->shared_ffn);
    mp_json_put_bool(json, "drafting_layer", mp_drafting_there(s->checkpoint, m));
    mp_json_put_u64(json, "one_expert_bytes", expert_size(s));
    mp_json_put_u64(json, "slices", s->memory.slices);
    mp_json_put_u64(json, "expert_bytes", s->memory.expert_bytes);
    mp_json_put_u64(json, "token_cycle_bytes", token_cycle(s));
    mp_json_put_u64(json, "smallest_budget_bytes", s->memory.smallest_bytes);
    mp_json_put_u64(json, "full_budget_bytes", s->memory.full_bytes);
    mp_json_put_u64(json, "budget_bytes", s->memory.budget_bytes);
    mp_json_put_u64(json, "weights_bytes", s->memory.weights_bytes);
    mp_json_put_u64(json, "kv_bytes", s->memory.kv_bytes);
    mp_json_put_string(json, "kv_type", mp_wtype_name(s->engine_config.kv_type));
    mp_json_put_u64(json, "state_bytes", s->memory.state_bytes);
    mp_json_put_u64(json, "total_bytes", s->memory.total_bytes);
    mp_json_put_bool(json, "fits", s->memory.total_bytes <= s->memory.room_bytes);
    mp_json_put_bool(json, "direct_io", s->direct_io);
    if (s->device.cuda) {
        mp_json_put_u64(json, "waste_bytes", s->memory.waste_bytes);
        mp_json_put_u64(json, "window_bytes", s->memory.window_bytes);
        mp_json_put_string(json, "addressing", s->memory.window_bytes > 0 ? "window" : "table");
        mp_json_put_string(json, "addressing_reason", s->addressing);
        mp_json_put_u64(json, "device_free_bytes", s->memory.device_free_bytes);
        mp_json_put_u64(json, "device_total_bytes", s->memory.device_total_bytes);
    }
    mp_json_object_end(json);
}

static void json_cuda(const struct mp_topology *topology, struct mp_json_out *json)
{
    struct mp_cuda_device device;
    const struct mp_cuda *cuda = NULL;
    const bool found = mp_cuda_get(&cuda) == MP_OK;
    struct mp_pci_link link;

    mp_json_object_begin(json, "cuda");
    mp_json_put_string(json, "off", found ? NULL : mp_error_last()->text);
    mp_json_array_begin(json, "devices");
    if (found) {
        for (unsigned i = 0; i < cuda->devices; i++) {
            if (mp_cuda_describe(cuda, i, &device) != MP_OK)
                continue;
            mp_json_object_begin(json, NULL);
            mp_json_put_string(json, "name", device.name);
            mp_json_put_string(json, "uuid", device.uuid);
            mp_json_put_string(json, "pci", device.pci);
            mp_json_put_u64(json, "memory_bytes", device.memory_bytes);
            mp_json_put_i64(json, "capability", device.capability);
            mp_pci_link_read("", device.pci, &link);
            mp_json_put_i64(json, "numa_node", node_of(topology, &device, &link));
            mp_json_put_string(json, "link_speed", link.speed[0] != '\0' ? link.speed : NULL);
            mp_json_put_u64(json, "link_width", link.width);
            mp_json_object_end(json);
        }
    }
    mp_json_array_end(json);
    mp_json_object_end(json);
    mp_error_clear(); /* having no device is no failure of this command */
}

static void json_abilities(const struct mp_topology *topology, struct mp_json_out *json)
{
    const struct mp_policy_info *info;

    mp_json_array_begin(json, "kernels");
    for (size_t i = 0; mp_kernels_names[i] != NULL; i++) {
        if (mp_kernels_find(mp_kernels_names[i]) != NULL)
            mp_json_put_string(json, NULL, mp_kernels_names[i]);
    }
    mp_json_array_end(json);
    mp_json_put_string(json, "math_f32", mp_kernels_best()->name);
    mp_json_put_string(json, "math_native", math_by(MP_MATH_NATIVE));
    mp_json_put_string(json, "math_amx", math_by(MP_MATH_AMX));
    mp_json_array_begin(json, "weights");
    for (int i = 0; i < MP_WTYPE_COUNT; i++)
        mp_json_put_string(json, NULL, mp_wtype_name((enum mp_wtype)i));
    mp_json_array_end(json);
    mp_json_put_string(json, "quantised", quantised_by());
    mp_json_array_begin(json, "backends");
    for (size_t i = 0; mp_backends[i] != NULL; i++)
        mp_json_put_string(json, NULL, mp_backends[i]->name);
    mp_json_array_end(json);
    json_cuda(topology, json);
    mp_json_array_begin(json, "profiles");
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++)
        mp_json_put_string(json, NULL, p->name);
    mp_json_array_end(json);
    mp_json_object_begin(json, "policies");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        mp_json_array_begin(json, mp_policy_kind_name(kind));
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++)
            mp_json_put_string(json, NULL, info->name);
        mp_json_array_end(json);
    }
    mp_json_object_end(json);
}

static void json_cached(void *ctx, const char *name, const char *path)
{
    struct mp_json_out *json = ctx;

    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "name", name);
    mp_json_put_string(json, "path", path);
    mp_json_object_end(json);
}

static void print_cached(void *ctx, const char *name, const char *path)
{
    unsigned *count = ctx;

    printf("%s  %s\n      %s\n", (*count)++ == 0 ? "\ncached models, for --model\n" : "", name,
           path);
}

/* With a session of its model, else with `environment`, where models of other programs are. */
static void print_json(const struct mp_topology *topology, const struct mp_session *session,
                       const struct mp_environment *environment)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "version", mp_version);
    mp_topology_json(topology, &json, "machine");
    json_abilities(topology, &json);
    if (session != NULL)
        json_model(session, &json);
    if (environment != NULL) {
        mp_json_array_begin(&json, "cached_models");
        mp_model_each(environment, json_cached, &json);
        mp_json_array_end(&json);
    }
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* A model without a tokenizer is whole: bench needs none. */
static enum mp_status check_tokenizer(const char *model, const struct mp_session *session)
{
    struct mp_tokenizer *tokenizer = NULL;
    enum mp_status status = mp_tokenizer_load(model, &tokenizer);

    if (status != MP_OK && strcmp(mp_error_last()->code, "E_FILE_MISSING") == 0) {
        mp_error_clear();
        return MP_OK;
    }
    if (status == MP_OK)
        status = mp_tokenizer_check_rows(tokenizer, session->model.vocab);
    mp_tokenizer_destroy(tokenizer);
    return status;
}

static enum mp_status check_values(const struct mp_args *args, const struct mp_session *session)
{
    struct mp_progress_bar bar;
    const struct mp_progress progress = mp_loading_progress(&bar);
    enum mp_status status;

    if (!args->check_values)
        return MP_OK;
    mp_progress_bar_begin(&bar, "checking", NULL, mp_clock_monotonic());
    status = mp_checkpoint_check_values(session->checkpoint, &progress);
    mp_progress_bar_end(&bar);
    return status == MP_OK ? check_tokenizer(args->model, session) : status;
}

static enum mp_status info_model(const struct mp_args *args, const struct mp_settings *settings)
{
    const struct mp_session_config config = {
        .model = args->model,
        .sequences = 1,
        .plan_only = true,
        .clock = mp_clock_monotonic(),
        .cancel = &mp_interrupted,
    };
    struct mp_session session;
    enum mp_status status = mp_session_open(settings, &config, &session);

    if (status != MP_OK)
        return status;
    status = check_values(args, &session);
    if (status == MP_OK && args->json) {
        print_json(session.topology, &session, NULL);
    } else if (status == MP_OK) {
        print_model(&session);
        putchar('\n');
        print_machine(session.topology);
        print_policies();
    }
    mp_session_close(&session);
    return status;
}

enum mp_status mp_cmd_info(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_environment environment;
    struct mp_topology *topology;
    unsigned cached = 0;
    enum mp_status status;

    if (args->check_values && args->model == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--check-values needs --model");
    if (args->model != NULL) {
        status = info_model(args, settings);
        return status == MP_OK ? mp_check_stdout() : status;
    }
    status = mp_topology_load(NULL, &topology);
    if (status != MP_OK)
        return status;
    status = mp_environment_copy(&environment);
    if (status != MP_OK)
        goto err_destroy;
    if (args->json) {
        print_json(topology, NULL, &environment);
    } else {
        print_machine(topology);
        print_policies();
        mp_model_each(&environment, print_cached, &cached);
    }
    mp_environment_fini(&environment);
    status = mp_check_stdout();

err_destroy:
    mp_topology_destroy(topology);
    return status;
}
