#ifndef MP_SIM_MACHINE_H
#define MP_SIM_MACHINE_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Descriptions of a machine and of a model for the simulator: two small text files, one `key value`
 * per line, `#` begins a comment. docs/simulate.md lists the keys. All numbers are doubles.
 */
struct mp_sim_machine {
    char name[64];
    double link_gbps, copy_us, copies; /* host tier to device tier; per copy; copies per expert */
    double device_gbps, device_gflops, launch_us;
    double device_gib;
    double cpu_gbps, cpu_gflops, cpu_start_us, handoff_us; /* cpu_gflops 0: no CPU executor */
    double in_place_gbps;                                  /* 0: the device cannot */
    double disk_gbps, disk_us; /* 0: experts come from the host tier; else from disk */

    /* Measured times of one model; they replace the times that follow from the values above. */
    double expert_us, expert_token_us, layer_us, layer_token_us, step_us, step_token_us;
    double load_us, latency_us; /* latencies of several loads overlap */
    double predict_us;          /* one prediction by another layer's router */

    /* Model of the engine on the host. group_us > 0: experts that are ready at the same time are
     * computed as a group, which starts within group_us and blocks the step. wake_us: from the end
     * of a read that the step waited for to that start. issue_us: the step's time per load.
     * busy_factor: slowdown of computation while a read is in flight. fresh_us: extra time of an
     * expert's first use after its load, when it is in no cache. */
    double group_us, wake_us, issue_us, busy_factor, fresh_us;
};

struct mp_sim_model {
    char name[64];
    double layers, dense_layers, experts, top_k; /* layers: MoE layers */
    double hidden, expert_ffn, shared_ffn, dense_ffn, vocabulary;
    double attention_params, kv_bytes; /* of a layer; of one token in one layer */
    double expert_bits, weight_bits;   /* per weight, scales included */

    /* Statistics of routing; see policy/sim/sim_load.h. */
    double skew, variation, overlap, mass;
    double accuracy_gate, accuracy_residual, accuracy_partial, accuracy_llapor;
    double llapor_us;
};

/*
 * `name` is a path if it has a slash or a dot, else the name of a built-in description.
 * MP_ERR_CONFIG E_DESCRIPTION: unknown name (with the list), unknown key, bad number, key missing.
 */
enum mp_status mp_sim_machine_read(const char *name, struct mp_sim_machine *machine) MP_MUST_CHECK;
enum mp_status mp_sim_model_read(const char *name, struct mp_sim_model *model) MP_MUST_CHECK;

/* The same from text. */
enum mp_status mp_sim_machine_parse(const char *name, const char *text,
                                    struct mp_sim_machine *machine) MP_MUST_CHECK;
enum mp_status mp_sim_model_parse(const char *name, const char *text,
                                  struct mp_sim_model *model) MP_MUST_CHECK;

/* Override numbers of either description: "key=value,key=value". */
enum mp_status mp_sim_change(const char *changes, struct mp_sim_machine *machine,
                             struct mp_sim_model *model) MP_MUST_CHECK;

/* The built-in descriptions; NULL-name-terminated. Generated from tools/machines. */
struct mp_sim_text {
    const char *name, *text;
};
extern const struct mp_sim_text mp_sim_machines[], mp_sim_models[];

/* Costs in ns, from machine and model. */
uint64_t mp_sim_expert_bytes(const struct mp_sim_model *model);
uint64_t mp_sim_load_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model);
/* An expert on `tokens` tokens. */
uint64_t mp_sim_device_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                          uint32_t tokens);
uint64_t mp_sim_cpu_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                       uint32_t tokens);
uint64_t mp_sim_in_place_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                            uint32_t tokens);
/* Attention and router of a layer: `tokens` tokens of `sequences` sequences that have `context`
 * tokens each. */
uint64_t mp_sim_layer_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                         uint32_t tokens, uint32_t sequences, uint32_t context);
uint64_t mp_sim_router_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                          uint32_t tokens);
/* A feed-forward network of every token: shared experts, or a dense layer's. */
uint64_t mp_sim_ffn_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                       double ffn, uint32_t tokens);
/* Embedding and output of a step. */
uint64_t mp_sim_head_ns(const struct mp_sim_machine *machine, const struct mp_sim_model *model,
                        uint32_t tokens, uint32_t sequences);
/* Bytes of everything but routed experts. */
uint64_t mp_sim_other_bytes(const struct mp_sim_model *model);

#endif
