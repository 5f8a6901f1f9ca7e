#ifndef MP_DEVICE_CHOICE_H
#define MP_DEVICE_CHOICE_H

#include "engine/session/settings.h"
#include "vmm/backend/cuda/cuda_driver.h"

/*
 * Chooses where a run stores and computes experts, from --device, --backend and the available
 * hardware.
 */
struct mp_device_choice {
    char backend[128]; /* chain, for mp_backend_open() */
    bool cuda;
    unsigned ordinal;             /* of the CUDA device */
    struct mp_cuda_device device; /* the same */
};

/*
 * cpu (or host): the host backend. cuda, cuda:N: that device, or an error with the reason. auto:
 * the first CUDA device if its memory and kernels can be used, else the host backend, with the
 * reason in one log line at level info. A --backend that ends in cuda means the same as --device
 * cuda.
 *
 * MP_ERR_CONFIG E_OPTION: --device is none of these, or contradicts --backend.
 */
enum mp_status mp_device_choose(const struct mp_run_settings *run,
                                struct mp_device_choice *choice_p) MP_MUST_CHECK;

#endif
