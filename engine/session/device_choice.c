/*
 * Host or CUDA: what the settings ask for and what this machine has. Opens no backend.
 */
#include "engine/session/device_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/gpu.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

enum request { REQUEST_AUTO, REQUEST_CPU, REQUEST_CUDA };

static enum mp_status refuse(const char *text)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_OPTION", "--device: got '%s', need auto, cpu, cuda or cuda:N",
                   mp_quote(quoted, text, strlen(text)));
}

static enum mp_status parse(const char *text, enum request *request_p, unsigned *ordinal_p)
{
    static const char prefix[] = "cuda:";
    const size_t bytes = sizeof(prefix) - 1;
    unsigned long ordinal;

    *ordinal_p = 0;
    if (!strcmp(text, "auto") || text[0] == '\0')
        *request_p = REQUEST_AUTO;
    else if (!strcmp(text, "cpu") || !strcmp(text, "host"))
        *request_p = REQUEST_CPU;
    else
        *request_p = REQUEST_CUDA;
    if (*request_p != REQUEST_CUDA || !strcmp(text, "cuda"))
        return MP_OK;
    if (strncmp(text, prefix, bytes) != 0 || text[bytes] == '\0' || strlen(text + bytes) > 4 ||
        strspn(text + bytes, "0123456789") != strlen(text + bytes))
        return refuse(text);
    ordinal = strtoul(text + bytes, NULL, 10);
    *ordinal_p = (unsigned)ordinal;
    return MP_OK;
}

/* The real backend of a chain is its last name. */
static const char *last_of(const char *chain)
{
    const char *colon = strrchr(chain, ':');

    return colon != NULL ? colon + 1 : chain;
}

/* Can this device be used? */
static enum mp_status look_at(unsigned ordinal, struct mp_cuda_device *device_p)
{
    const struct mp_cuda *cuda;
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK && ordinal >= cuda->devices)
        return mp_fail(MP_ERR_CONFIG, "E_CUDA_DEVICE",
                       "there is no CUDA device %u; the driver sees %u", ordinal, cuda->devices);
    if (status == MP_OK)
        status = mp_cuda_describe(cuda, ordinal, device_p);
    if (status == MP_OK && !device_p->vmm)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF",
                       "CUDA is off: device '%s' has no virtual memory management", device_p->name);
    return status;
}

/* For auto, a device also has to take the kernels: nobody asked for it. */
static enum mp_status try_out(unsigned ordinal, struct mp_cuda_device *device_p)
{
    struct mp_gpu *gpu;
    enum mp_status status = look_at(ordinal, device_p);

    if (status == MP_OK)
        status = mp_gpu_open(ordinal, &gpu);
    if (status == MP_OK)
        mp_gpu_close(gpu);
    return status;
}

enum mp_status mp_device_choose(const struct mp_run_settings *run,
                                struct mp_device_choice *choice_p)
{
    struct mp_device_choice choice = { .cuda = false };
    const char *last = last_of(run->backend);
    const bool host = !strcmp(last, "host"), cuda = !strcmp(last, "cuda");
    enum request request;
    enum mp_status status = parse(run->device, &request, &choice.ordinal);

    if (status != MP_OK)
        return status;
    if (cuda && request == REQUEST_CPU)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "--device %s contradicts --backend %s",
                       run->device, run->backend);
    snprintf(choice.backend, sizeof(choice.backend), "%s", run->backend);
    if (cuda || (host && request == REQUEST_CUDA)) {
        status = look_at(choice.ordinal, &choice.device);
        choice.cuda = true;
    } else if (host && request == REQUEST_AUTO) {
        choice.cuda = try_out(choice.ordinal, &choice.device) == MP_OK;
        if (!choice.cuda)
            mp_log_info("engine", "experts stay in RAM and the CPU computes: %s",
                        mp_error_last()->text);
        mp_error_clear();
    }
    if (status == MP_OK && choice.cuda && host)
        snprintf(choice.backend, sizeof(choice.backend), "%.*scuda", (int)(last - run->backend),
                 run->backend);
    if (status == MP_OK)
        *choice_p = choice;
    return status;
}
