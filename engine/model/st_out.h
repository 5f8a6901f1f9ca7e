#ifndef MP_ENGINE_ST_OUT_H
#define MP_ENGINE_ST_OUT_H

#include "engine/model/sidecar/sidecar.h"
#include "vmm/output/out.h"

/*
 * Writes a safetensors file of the kind that engine/model/sidecar/sidecar.h reads: header with
 * metadata, then the data of the tensors in the order of the list. No file of that name exists
 * before commit.
 */
struct mp_st_out_tensor {
    char name[64];
    enum mp_dtype dtype;
    uint32_t dims;
    uint64_t shape[3];
};

struct mp_st_out {
    struct mp_out out; /* write the data to out.file; write errors are reported by commit */
    uint64_t data_begin;
};

enum mp_status mp_st_out_open(struct mp_st_out *st, const char *path, const char *format,
                              const struct mp_model_id *id, uint64_t tokens,
                              const struct mp_st_out_tensor *tensors, size_t count) MP_MUST_CHECK;

/* Bytes of a tensor's data. Its writer has them in memory, so the size does not overflow; plain
 * numbers only. */
uint64_t mp_st_out_bytes(const struct mp_st_out_tensor *tensor);

/* Continue to write at this byte of the data. A failure is reported by commit. */
void mp_st_out_seek(struct mp_st_out *st, uint64_t data_offset_bytes);

enum mp_status mp_st_out_commit(struct mp_st_out *st) MP_MUST_CHECK;
void mp_st_out_abandon(struct mp_st_out *st);

#endif
