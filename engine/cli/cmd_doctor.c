/*
 * `moepager doctor`: what of this machine is slow or missing, and what to do.
 */
#include <stdio.h>

#include "engine/cli/commands.h"
#include "engine/doctor/doctor.h"
#include "vmm/output/json_out.h"

static void print_text(const struct mp_doctor_finding *findings, size_t count)
{
    unsigned bad = 0;

    for (size_t i = 0; i < count; i++) {
        printf("%-8s %-11s %s\n", mp_doctor_verdict_name(findings[i].verdict), findings[i].name,
               findings[i].text);
        if (findings[i].advice[0] != '\0')
            printf("%20s %s\n", "", findings[i].advice);
        bad += findings[i].verdict == MP_DOCTOR_SLOW;
    }
    printf("\n%u of %zu could be faster\n", bad, count);
}

static void print_json(const struct mp_doctor_facts *facts,
                       const struct mp_doctor_finding *findings, size_t count)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "room_bytes", facts->room.room_bytes);
    mp_json_put_f64(&json, "disk_bytes_per_s", facts->disk_bytes_per_s);
    mp_json_put_bool(&json, "disk_direct", facts->disk_direct);
    mp_json_array_begin(&json, "findings");
    for (size_t i = 0; i < count; i++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_string(&json, "name", findings[i].name);
        mp_json_put_string(&json, "verdict", mp_doctor_verdict_name(findings[i].verdict));
        mp_json_put_string(&json, "text", findings[i].text);
        mp_json_put_string(&json, "advice",
                           findings[i].advice[0] != '\0' ? findings[i].advice : NULL);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static enum mp_status read_disk(const struct mp_args *args, const struct mp_settings *settings,
                                struct mp_doctor_facts *facts)
{
    const struct mp_session_config config = { .model = args->model,
                                              .sequences = 1,
                                              .plan_only = true,
                                              .clock = mp_clock_monotonic(),
                                              .cancel = &mp_interrupted };
    struct mp_session session;
    enum mp_status status = mp_session_open(settings, &config, &session);

    if (status != MP_OK)
        return status;
    facts->expert_bytes =
        session.memory.expert_bytes / ((uint64_t)session.model.moe_layers * session.model.experts);
    status = mp_doctor_read_disk(mp_checkpoint_files(session.checkpoint), config.clock, facts);
    mp_session_close(&session);
    return status;
}

enum mp_status mp_cmd_doctor(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX];
    struct mp_doctor_facts facts;
    struct mp_topology *topology;
    size_t count;
    enum mp_status status = mp_topology_load(NULL, &topology);

    if (status != MP_OK)
        return status;
    mp_doctor_read("", topology, &facts);
    mp_topology_destroy(topology);
    if (args->model != NULL)
        status = read_disk(args, settings, &facts);
    if (status != MP_OK)
        return status;
    count = mp_doctor_judge(&facts, findings);
    if (args->json)
        print_json(&facts, findings, count);
    else
        print_text(findings, count);
    return mp_check_stdout();
}
