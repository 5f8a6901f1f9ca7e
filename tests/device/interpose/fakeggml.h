#ifndef MP_TESTS_FAKEGGML_H
#define MP_TESTS_FAKEGGML_H

#include "interpose/cuda/cudart_abi.h"
#include "interpose/pager/ggml.h"

/*
 * The functions of ggml that a program uses which copies experts to a device itself, over a CUDA
 * runtime: names, argument lists and what they promise as in ggml, no more of it than that. Tensors
 * have the layout that moepager knows.
 */
struct mp_ggml_tensor *ggml_new_tensor_2d(void *context, int type, int64_t ne0, int64_t ne1);
struct mp_ggml_tensor *ggml_new_tensor_3d(void *context, int type, int64_t ne0, int64_t ne1,
                                          int64_t ne2);
struct fakeggml_params {
    size_t bytes;
    void *memory;
    bool no_alloc;
};
void *ggml_init(struct fakeggml_params params);
void ggml_free(void *context);
struct mp_ggml_tensor *ggml_mul_mat_id(void *context, struct mp_ggml_tensor *as,
                                       struct mp_ggml_tensor *b, struct mp_ggml_tensor *ids);
struct mp_ggml_tensor *ggml_set_name(struct mp_ggml_tensor *tensor, const char *name);
const char *ggml_get_name(const struct mp_ggml_tensor *tensor);
void *ggml_get_data(const struct mp_ggml_tensor *tensor);

/* Of a stream of the runtime. */
void *fakeggml_backend(mp_rt_stream stream);
void ggml_backend_tensor_set_async(void *backend, void *tensor, const void *data,
                                   size_t offset_bytes, size_t bytes);
void ggml_backend_tensor_get_async(void *backend, const void *tensor, void *data,
                                   size_t offset_bytes, size_t bytes);
void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset_bytes, size_t bytes);
void ggml_backend_synchronize(void *backend);
void ggml_backend_free(void *backend); /* with its stream */

typedef bool fakeggml_copy(void *backend, const void *src, void *dst, void *graph, void *data);
void ggml_backend_sched_set_copy_callback(void *sched, fakeggml_copy *callback, void *data);

/* What a scheduler does with a host weight: its callback, else a copy of all of it. */
void fakeggml_copy_input(void *sched, void *backend, const struct mp_ggml_tensor *src,
                         struct mp_ggml_tensor *dst);
void *fakeggml_sched(void);

#endif
