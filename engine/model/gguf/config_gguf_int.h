#ifndef MP_CONFIG_GGUF_INT_H
#define MP_CONFIG_GGUF_INT_H

#include "engine/model/config.h"
#include "engine/model/roles.h"
#include "vmm/format/gguf.h"

/*
 * The inside of engine/model/gguf/config_gguf.c: what the metadata of a GGUF file say, key by key.
 * Names of keys are those behind the name of the architecture.
 */
#define MP_GGUF_CONFIG_KEY_BYTES 128

struct mp_gguf_config {
    const struct mp_gguf *gguf;
    const struct mp_arch *arch;
    char file[MP_QUOTE_BYTES];
};

struct mp_arch_number;

/* Write "qwen3moe.block_count" and return it. */
const char *mp_gguf_config_key(const struct mp_gguf_config *source, const char *name,
                               char out[MP_GGUF_CONFIG_KEY_BYTES]);

const struct mp_gguf_value *mp_gguf_config_find(const struct mp_gguf_config *source,
                                                const char *name);
/* Has the file the tensor of this role in this layer? */
bool mp_gguf_config_has(const struct mp_gguf_config *source, enum mp_role role,
                        uint32_t layer) MP_MUST_CHECK;

enum mp_status mp_gguf_config_u32(const struct mp_gguf_config *source, const char *name,
                                  uint32_t min, uint32_t max, uint32_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_config_u32_or(const struct mp_gguf_config *source, const char *name,
                                     uint32_t min, uint32_t max, uint32_t other,
                                     uint32_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_config_double(const struct mp_gguf_config *source, const char *name,
                                     double min, double max, double *out_p) MP_MUST_CHECK;

/* The number of a layer: a list has one for each, a single one is that of all. */
enum mp_status mp_gguf_config_of_layer(const struct mp_gguf_config *source, const char *name,
                                       uint32_t layer, uint32_t min, uint32_t max,
                                       uint32_t *out_p) MP_MUST_CHECK;

/* A number of the family: its default where the key is missing; without a key nothing is changed.
 */
enum mp_status mp_gguf_config_number(const struct mp_gguf_config *source,
                                     const struct mp_arch_number *from,
                                     float *value_p) MP_MUST_CHECK;
enum mp_status mp_gguf_config_count(const struct mp_gguf_config *source,
                                    const struct mp_arch_number *from, uint32_t min, uint32_t max,
                                    uint32_t *value_p) MP_MUST_CHECK;

/* The number is absent, 0, or the one that changes nothing. */
bool mp_gguf_config_neutral(const struct mp_gguf_value *value, double neutral) MP_MUST_CHECK;

/* A value that asks for something this engine does not do. */
enum mp_status mp_gguf_config_unsupported(const struct mp_gguf_config *source, const char *name,
                                          const char *need) MP_COLD;

/* config_gguf_heads.c: heads of queries, keys and values; needs the width. */
enum mp_status mp_gguf_config_heads(const struct mp_gguf_config *source,
                                    struct mp_model_config *config) MP_MUST_CHECK;

/* config_gguf_experts.c: the networks of layers, and what their experts are chosen by. */
enum mp_status mp_gguf_config_experts(const struct mp_gguf_config *source,
                                      struct mp_model_config *config) MP_MUST_CHECK;

/* config_gguf_positions.c: scaled positions and windows; needs the heads. */
enum mp_status mp_gguf_config_positions(const struct mp_gguf_config *source,
                                        struct mp_model_config *config) MP_MUST_CHECK;

/* Divisors of frequencies, if the file has a tensor of that name: `count` numbers of at least 1e-6,
 * at most MP_ROPE_FACTORS_MAX. */
enum mp_status mp_gguf_config_divisors(const struct mp_gguf_config *source, const char *name,
                                       uint32_t count, float *divisors, bool *any_p) MP_MUST_CHECK;

/* config_gguf_wide.c: the same two where layers of full attention have other heads. */
enum mp_status mp_gguf_config_wide_heads(const struct mp_gguf_config *source,
                                         struct mp_model_config *config) MP_MUST_CHECK;
enum mp_status mp_gguf_config_wide_positions(const struct mp_gguf_config *source,
                                             struct mp_model_config *config) MP_MUST_CHECK;

#endif
