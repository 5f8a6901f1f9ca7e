#ifndef MP_ENGINE_CONFIG_INT_H
#define MP_ENGINE_CONFIG_INT_H

#include "engine/model/config.h"
#include "vmm/format/json.h"

/*
 * The inside of engine/model/config.c: what config.json says, key by key. config_heads.c reads what
 * is about the heads of attention, config_positions.c what is about positions and windows,
 * config_wide.c both of layers whose heads have another size, config_experts.c what is about
 * experts and their router.
 */
#define MP_CONFIG_FILE "config.json"
#define MP_FFN_MAX (1u << 20)

struct mp_arch_number;
struct mp_arch_switch;

enum mp_status mp_config_u32(const json_t *root, const char *key, uint32_t min, uint32_t max,
                             uint32_t *value_p) MP_MUST_CHECK;

/* The key's number, or the default where it is missing or the family has no such key. */
enum mp_status mp_config_u32_or(const json_t *root, const struct mp_arch_number *from, uint32_t min,
                                uint32_t max, uint32_t *value_p) MP_MUST_CHECK;
enum mp_status mp_config_float_or(const json_t *root, const struct mp_arch_number *from, double min,
                                  double max, float *value_p) MP_MUST_CHECK;
enum mp_status mp_config_switch(const json_t *root, const struct mp_arch_switch *from,
                                bool *value_p) MP_MUST_CHECK;

/* Neither absent nor null. */
bool mp_config_given(const json_t *object, const char *key);

/* A value that asks for something this engine does not do. */
enum mp_status mp_config_unsupported(const char *key, const json_t *value,
                                     const char *need) MP_COLD;

/* Heads; needs the width of the residual stream. */
enum mp_status mp_config_heads(const json_t *root, struct mp_model_config *config) MP_MUST_CHECK;

/* Rotation and windows; needs the sizes. */
enum mp_status mp_config_positions(const json_t *root,
                                   struct mp_model_config *config) MP_MUST_CHECK;

/* The same of wide layers, for families that have them; the rotation of the others too. */
enum mp_status mp_config_wide_heads(const json_t *root,
                                    struct mp_model_config *config) MP_MUST_CHECK;
enum mp_status mp_config_wide_positions(const json_t *root,
                                        struct mp_model_config *config) MP_MUST_CHECK;

/* What an object of RoPE says, if it is there; without wide layers, of all. */
enum mp_status mp_config_rope(const json_t *root, const char *key,
                              struct mp_model_config *config) MP_MUST_CHECK;

/* Routed experts, router, shared expert, layers without experts. */
enum mp_status mp_config_experts(const json_t *root, struct mp_model_config *config) MP_MUST_CHECK;

#endif
