/*
 * Machine and model of `moepager plan`, from descriptions or from what is there.
 */
#include "engine/cli/plan_facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/doctor/doctor.h"

#define HOST_MACHINE "host-disk"
#define TEXT_BYTES 1024

static bool is_description(const char *name)
{
    for (const struct mp_sim_text *text = mp_sim_models; text->name != NULL; text++) {
        if (!strcmp(text->name, name))
            return true;
    }
    return false;
}

static double within(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

/* The shape as a description's text, so that all is checked as any description is. */
static enum mp_status describe(const struct mp_session *s, const char *name,
                               struct mp_sim_model *model)
{
    const struct mp_model_config *m = &s->model;
    const struct mp_memory_plan *plan = &s->memory;
    const uint64_t experts = (uint64_t)m->moe_layers * m->experts;
    const double weights = 3.0 * m->hidden * m->expert_ffn;
    const double cached = (double)s->engine_config.ctx * m->layers;
    char text[TEXT_BYTES];
    enum mp_status status;

    snprintf(text, sizeof(text),
             "layers %" PRIu32 "\ndense_layers %" PRIu32 "\nexperts %" PRIu32 "\ntop_k %" PRIu32
             "\nhidden %" PRIu32 "\nexpert_ffn %" PRIu32 "\nshared_ffn %" PRIu32
             "\ndense_ffn %" PRIu32 "\nvocabulary %" PRIu32 "\nattention_params %" PRIu64
             "\nkv_bytes %.3f\nexpert_bits %.6f\n",
             m->moe_layers, m->layers - m->moe_layers, m->experts, m->experts_per_token, m->hidden,
             m->expert_ffn, m->shared_ffn, m->dense_ffn, m->vocab,
             (uint64_t)m->hidden * m->head_dim * 2 * (m->heads + m->kv_heads),
             cached > 0 ? (double)plan->kv_bytes / cached : 0,
             within(8.0 * (double)plan->expert_bytes / (double)experts / weights, 1, 32));
    status = mp_sim_model_parse(name, text, model);
    if (status == MP_OK) /* all other weights together have the size that they have in the files */
        model->weight_bits = within(model->weight_bits * (double)plan->weights_bytes /
                                        (double)mp_sim_other_bytes(model),
                                    1, 32);
    return status;
}

static enum mp_status open_plan(const struct mp_args *args, const struct mp_settings *settings,
                                struct mp_session *session)
{
    const struct mp_session_config config = { .model = args->model,
                                              .sequences = 1,
                                              .plan_only = true,
                                              .clock = mp_clock_monotonic(),
                                              .cancel = &mp_interrupted };

    return mp_session_open(settings, &config, session);
}

/* What is known of a disk without running the model. */
static enum mp_status read_disk(const struct mp_args *args, const struct mp_settings *settings,
                                struct mp_plan_facts *facts)
{
    struct mp_doctor_facts doctor = { .disk_bytes_per_s = 0 };
    struct mp_session session;
    enum mp_status status = open_plan(args, settings, &session);

    if (status != MP_OK)
        return status;
    status =
        mp_doctor_read_disk(mp_checkpoint_files(session.checkpoint), mp_clock_monotonic(), &doctor);
    mp_session_close(&session);
    if (status == MP_ERR_NO_MEMORY) { /* for a block: then not even the disk is known */
        mp_error_clear();
        return MP_OK;
    }
    if (status == MP_OK && doctor.disk_bytes_per_s > 0) {
        facts->disk_gbps = doctor.disk_bytes_per_s / 1e9;
        facts->machine.link_gbps = within(facts->disk_gbps, 0.001, 1e5);
    }
    return status;
}

static struct mp_measure_config what_to_run(const struct mp_args *args,
                                            const struct mp_settings *settings)
{
    return (struct mp_measure_config){
        .settings = settings,
        .model = args->model,
        .prompt = (uint32_t)args->prompt_tokens,
        .gen = (uint32_t)args->gen_tokens,
        .clock = mp_clock_monotonic(),
        .cancel = &mp_interrupted,
    };
}

/* A short run; that there is no memory for one is no failure. */
static enum mp_status measure(const struct mp_args *args, const struct mp_settings *settings,
                              struct mp_plan_facts *facts)
{
    const struct mp_measure_config config = what_to_run(args, settings);
    enum mp_status status = mp_measure_run(&config, &facts->measured);

    if (status == MP_ERR_NO_MEMORY || status == MP_ERR_NO_SPACE) {
        snprintf(facts->why_not, sizeof(facts->why_not), "%s", mp_error_last()->text);
        mp_error_clear();
        return MP_OK;
    }
    if (status != MP_OK)
        return status;
    mp_log_set_sink(mp_plan_drop_line, NULL);
    status = mp_measure_fit(&facts->measured, &facts->model, settings->groups, &facts->machine);
    mp_log_set_sink(NULL, NULL);
    if (status != MP_OK)
        return status;
    facts->measured_run = true;
    snprintf(facts->machine.name, sizeof(facts->machine.name), "this machine");
    facts->disk_gbps = (double)mp_sim_expert_bytes(&facts->model) / facts->machine.load_us / 1e3;
    if (facts->measured.accuracy > 0)
        facts->model.accuracy_gate = within(facts->measured.accuracy, 0.05, 1);
    return MP_OK;
}

/* The model that is there, and with `machine_too` what this machine does with it. */
static enum mp_status read_model(const struct mp_args *args, const struct mp_settings *settings,
                                 bool machine_too, struct mp_plan_facts *facts)
{
    struct mp_session session;
    enum mp_status status = open_plan(args, settings, &session);

    if (status != MP_OK)
        return status;
    status = describe(&session, args->model, &facts->model);
    facts->fixed_bytes =
        session.memory.weights_bytes + session.memory.kv_bytes + session.memory.state_bytes;
    if (machine_too && session.memory.room_bytes != UINT64_MAX) {
        facts->machine.device_gib =
            within((double)session.memory.room_bytes / (1 << 30), 0.001, 1e6);
        facts->room_known = true;
    }
    mp_session_close(&session);
    if (status == MP_OK && machine_too)
        status = measure(args, settings, facts);
    if (status == MP_OK && machine_too && !facts->measured_run)
        status = read_disk(args, settings, facts);
    return status;
}

enum mp_status mp_plan_try(const struct mp_args *args, const struct mp_settings *settings,
                           struct mp_trial *trials, size_t count)
{
    const struct mp_measure_config config = what_to_run(args, settings);

    return mp_measure_try(&config, trials, count);
}

void mp_plan_drop_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

void mp_plan_facts_fini(struct mp_plan_facts *facts)
{
    mp_measured_fini(&facts->measured);
}

enum mp_status mp_plan_read(const struct mp_args *args, const struct mp_settings *settings,
                            struct mp_plan_facts *facts)
{
    const struct mp_sim_model *m = &facts->model;
    enum mp_status status;

    status =
        mp_sim_machine_read(args->machine != NULL ? args->machine : HOST_MACHINE, &facts->machine);
    if (status != MP_OK)
        return status;
    if (is_description(args->model)) {
        status = mp_sim_model_read(args->model, &facts->model);
        if (status == MP_OK)
            facts->fixed_bytes = mp_sim_other_bytes(m) +
                                 (uint64_t)((m->layers + m->dense_layers) * m->kv_bytes *
                                            (double)(args->prompt_tokens + args->gen_tokens));
    } else {
        status = read_model(args, settings, args->machine == NULL, facts);
    }
    if (status == MP_OK && args->changes != NULL)
        status = mp_sim_change(args->changes, &facts->machine, &facts->model);
    facts->on_host = facts->machine.cpu_gflops == 0 && facts->machine.in_place_gbps == 0;
    return status;
}
