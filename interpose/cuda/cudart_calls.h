#ifndef MP_CUDART_CALLS_H
#define MP_CUDART_CALLS_H

#include "interpose/cuda/cudart_abi.h"

/*
 * Prototypes of the runtime's calls: for hooks of them, for the runtime that tests have in place of
 * NVIDIA's, and for programs of tests.
 */
mp_rt_error cudaGetDeviceCount(int *count);
mp_rt_error cudaGetDevice(int *device);
mp_rt_error cudaSetDevice(int device);
mp_rt_error cudaGetLastError(void);
mp_rt_error cudaPeekAtLastError(void);
const char *cudaGetErrorString(mp_rt_error error);
mp_rt_error cudaDeviceSynchronize(void);
mp_rt_error cudaDeviceReset(void);
mp_rt_error cudaDeviceEnablePeerAccess(int device, unsigned flags);
mp_rt_error cudaIpcGetMemHandle(void *handle, void *address);

mp_rt_error cudaMalloc(void **address, size_t bytes);
mp_rt_error cudaFree(void *address);
mp_rt_error cudaMallocAsync(void **address, size_t bytes, mp_rt_stream stream);
mp_rt_error cudaFreeAsync(void *address, mp_rt_stream stream);
mp_rt_error cudaHostAlloc(void **address, size_t bytes, unsigned flags);
mp_rt_error cudaMallocHost(void **address, size_t bytes);
mp_rt_error cudaFreeHost(void *address);
mp_rt_error cudaMallocManaged(void **address, size_t bytes, unsigned flags);
mp_rt_error cudaHostRegister(void *address, size_t bytes, unsigned flags);
mp_rt_error cudaHostUnregister(void *address);
mp_rt_error cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
mp_rt_error cudaPointerGetAttributes(struct mp_rt_pointer *out, const void *address);

mp_rt_error cudaMemcpy(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind);
mp_rt_error cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind);
mp_rt_error cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind,
                            mp_rt_stream stream);
mp_rt_error cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind,
                                 mp_rt_stream stream);
mp_rt_error cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum mp_rt_copy kind,
                              mp_rt_stream stream);
mp_rt_error cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t bytes, mp_rt_stream stream);
mp_rt_error cudaMemset(void *dst, int value, size_t bytes);
mp_rt_error cudaMemset_ptds(void *dst, int value, size_t bytes);
mp_rt_error cudaMemsetAsync(void *dst, int value, size_t bytes, mp_rt_stream stream);
mp_rt_error cudaMemsetAsync_ptsz(void *dst, int value, size_t bytes, mp_rt_stream stream);

mp_rt_error cudaStreamCreate(mp_rt_stream *stream);
mp_rt_error cudaStreamCreateWithFlags(mp_rt_stream *stream, unsigned flags);
mp_rt_error cudaStreamCreateWithPriority(mp_rt_stream *stream, unsigned flags, int priority);
mp_rt_error cudaStreamDestroy(mp_rt_stream stream);
mp_rt_error cudaStreamSynchronize(mp_rt_stream stream);
mp_rt_error cudaStreamSynchronize_ptsz(mp_rt_stream stream);
mp_rt_error cudaStreamQuery(mp_rt_stream stream);
mp_rt_error cudaStreamWaitEvent(mp_rt_stream stream, mp_rt_event event, unsigned flags);
mp_rt_error cudaStreamBeginCapture(mp_rt_stream stream, int mode);
mp_rt_error cudaStreamBeginCapture_ptsz(mp_rt_stream stream, int mode);
mp_rt_error cudaStreamBeginCaptureToGraph(mp_rt_stream stream, mp_rt_graph graph,
                                          const void *dependencies, const void *data, size_t count,
                                          int mode);
mp_rt_error cudaStreamEndCapture(mp_rt_stream stream, mp_rt_graph *graph);
mp_rt_error cudaStreamEndCapture_ptsz(mp_rt_stream stream, mp_rt_graph *graph);
mp_rt_error cudaStreamIsCapturing(mp_rt_stream stream, int *status);
mp_rt_error cudaEventCreate(mp_rt_event *event);
mp_rt_error cudaEventCreateWithFlags(mp_rt_event *event, unsigned flags);
mp_rt_error cudaEventDestroy(mp_rt_event event);
mp_rt_error cudaEventRecord(mp_rt_event event, mp_rt_stream stream);
mp_rt_error cudaEventQuery(mp_rt_event event);
mp_rt_error cudaEventSynchronize(mp_rt_event event);
mp_rt_error cudaEventElapsedTime(float *ms, mp_rt_event start, mp_rt_event end);

mp_rt_error cudaGraphInstantiate(mp_rt_exec *exec, mp_rt_graph graph, unsigned long long flags);
mp_rt_error cudaGraphExecUpdate(mp_rt_exec exec, mp_rt_graph graph, void *result);
mp_rt_error cudaGraphLaunch(mp_rt_exec exec, mp_rt_stream stream);
mp_rt_error cudaGraphLaunch_ptsz(mp_rt_exec exec, mp_rt_stream stream);
mp_rt_error cudaGraphExecDestroy(mp_rt_exec exec);
mp_rt_error cudaGraphDestroy(mp_rt_graph graph);

mp_rt_error cudaLaunchKernel(const void *stub, struct mp_rt_dim grid, struct mp_rt_dim block,
                             void **arguments, size_t shared_bytes, mp_rt_stream stream);
mp_rt_error cudaLaunchKernel_ptsz(const void *stub, struct mp_rt_dim grid, struct mp_rt_dim block,
                                  void **arguments, size_t shared_bytes, mp_rt_stream stream);
mp_rt_error cudaLaunchCooperativeKernel(const void *stub, struct mp_rt_dim grid,
                                        struct mp_rt_dim block, void **arguments,
                                        size_t shared_bytes, mp_rt_stream stream);
mp_rt_error cudaLaunchKernelExC(const struct mp_rt_launch *config, const void *stub,
                                void **arguments);
mp_rt_error cudaLaunchKernelExC_ptsz(const struct mp_rt_launch *config, const void *stub,
                                     void **arguments);
void **__cudaRegisterFatBinary(void *fat);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *device_name, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp);
unsigned __cudaPushCallConfiguration(struct mp_rt_dim grid, struct mp_rt_dim block,
                                     size_t shared_bytes, mp_rt_stream stream);
mp_rt_error __cudaPopCallConfiguration(struct mp_rt_dim *grid, struct mp_rt_dim *block,
                                       size_t *shared_bytes, mp_rt_stream *stream);
mp_rt_error __cudaGetKernel(mp_rt_kernel *kernel, const void *stub);
mp_rt_error __cudaLaunchKernel(mp_rt_kernel kernel, struct mp_rt_dim grid, struct mp_rt_dim block,
                               void **arguments, size_t shared_bytes, mp_rt_stream stream);
mp_rt_error __cudaLaunchKernel_ptsz(mp_rt_kernel kernel, struct mp_rt_dim grid,
                                    struct mp_rt_dim block, void **arguments, size_t shared_bytes,
                                    mp_rt_stream stream);

#endif
