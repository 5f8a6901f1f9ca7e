#ifndef MP_CONFIG_GGUF_INT_H
#define MP_CONFIG_GGUF_INT_H

#include "engine/model/config.h"
#include "vmm/format/gguf.h"

/*
 * The inside of engine/model/config_gguf.c: what the metadata of a GGUF file say, key by key.
 * config_gguf_positions.c reads what is about positions and windows. Names of keys are those
 * behind the name of the architecture.
 */
struct mp_gguf_config {
    const struct mp_gguf *gguf;
    const struct mp_arch *arch;
    char file[MP_QUOTE_BYTES];
};

const struct mp_gguf_value *mp_gguf_config_find(const struct mp_gguf_config *source,
                                                const char *name);
enum mp_status mp_gguf_config_u32(const struct mp_gguf_config *source, const char *name,
                                  uint32_t min, uint32_t max, uint32_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_config_u32_or(const struct mp_gguf_config *source, const char *name,
                                     uint32_t min, uint32_t max, uint32_t other,
                                     uint32_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_config_double(const struct mp_gguf_config *source, const char *name,
                                     double min, double max, double *out_p) MP_MUST_CHECK;

/* A value that asks for something this engine does not do. */
enum mp_status mp_gguf_config_unsupported(const struct mp_gguf_config *source, const char *name,
                                          const char *need) MP_COLD;

/* Scaled positions and windows; needs the sizes. */
enum mp_status mp_gguf_config_positions(const struct mp_gguf_config *source,
                                        struct mp_model_config *config) MP_MUST_CHECK;

#endif
