#ifndef MP_TESTS_FAKEGGML_H
#define MP_TESTS_FAKEGGML_H

#include "interpose/cuda/cudart_abi.h"
#include "tests/support/ggml_tensors.h"

/*
 * The functions of ggml that a program uses which copies experts to a device itself, over a CUDA
 * runtime: names, argument lists and what they promise as in ggml, no more of it than that. Tensors
 * have the layout that moepager knows.
 */

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
