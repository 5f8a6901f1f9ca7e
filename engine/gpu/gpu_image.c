/*
 * The kernels as the driver takes them: PTX, which it compiles for its device, or, from a folder of
 * such files, what tools/make_cubins compiled before. Not here: launching them (gpu.c).
 *
 * A file is named after a hash of its PTX, so that it is never used for other kernels, and after
 * the architecture. An unusable file only costs time: the PTX is always available.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gpu/gpu_int.h"
#include "vmm/base/log.h"

#define CUBIN_BYTES_MAX (64 << 20)

const struct mp_opt mp_gpu_opts[] = {
    MP_OPT_TEXT("CUDA_CUBINS", struct mp_gpu_config, cubins, "",
                "Folder with the CUDA kernels compiled by tools/make_cubins, so that the driver "
                "need not compile them; empty, or none for this device there: it does."),
    MP_OPT(MP_OPT_BOOL, "CUDA_PDL", struct mp_gpu_config, pdl, "off", 0, 1,
           "A kernel begins while the one before it ends, and waits for it (programmatic dependent "
           "launch); compute capability 9.0 or later, driver 12.3 or later. Nobody has measured it "
           "on a GPU. The output is the same."),
    MP_OPT_END,
};

static struct mp_gpu_config chosen;

void mp_gpu_configure(const struct mp_gpu_config *config)
{
    chosen = *config;
}

bool mp_gpu_wants_early(void)
{
    return chosen.pdl != 0;
}

void mp_gpu_configure_from_environment(void)
{
    (void)mp_opt_load(mp_gpu_opts, "MOEPAGER_", &chosen);
}

/* The first occurrence becomes `by`, of the same length. */
static void replace(char *text, const char *what, const char *by)
{
    char *at = strstr(text, what);

    if (at != NULL)
        memcpy(at, by, strlen(by));
}

/* What clang 14 does not know stands in comments, see kernels/cuda/ptx/mp_device.h. */
char *mp_gpu_early_ptx(const char *ptx)
{
    char *text = strdup(ptx);

    if (text == NULL)
        return NULL;
    replace(text, ".version 7.4", ".version 7.8");
    replace(text, ".target sm_75", ".target sm_90");
    replace(text, ".target sm_80", ".target sm_90");
    for (char *at = strstr(text, "//>"); at != NULL; at = strstr(at, "//>"))
        memset(at, ' ', 3);
    return text;
}

/* FNV-1a of the PTX, as tools/make_cubins has it. */
static uint64_t hash_of(const char *ptx)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (const char *at = ptx; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return hash;
}

/* The whole file; NULL: there is none, or it cannot be read, with a warning. */
static void *read_file(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info = { .st_size = 0 };
    char *bytes = NULL;
    ssize_t got = -1;

    if (fd < 0) {
        if (errno != ENOENT)
            mp_log_warn("cuda", "%s: %s; the driver compiles the kernels", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &info) == 0 && info.st_size > 0 && info.st_size <= CUBIN_BYTES_MAX)
        bytes = malloc((size_t)info.st_size + 1);
    if (bytes != NULL)
        got = pread(fd, bytes, (size_t)info.st_size, 0);
    (void)close(fd);
    if (bytes != NULL && got == (ssize_t)info.st_size) {
        bytes[got] = '\0';
        return bytes;
    }
    mp_log_warn("cuda", "%s: read %lld of %lld bytes; the driver compiles the kernels", path,
                (long long)got, (long long)info.st_size);
    free(bytes);
    return NULL;
}

/* Code for 8.0 also runs on 8.6 and 8.9, not on 9.0. */
void *mp_gpu_cubin_read(const char *ptx, int capability, char *path, size_t path_bytes)
{
    void *cubin = NULL;

    if (chosen.cubins[0] != '\0') {
        for (int arch = capability; cubin == NULL; arch--) {
            snprintf(path, path_bytes, "%s/kernels-%016llx-sm_%d.cubin", chosen.cubins,
                     (unsigned long long)hash_of(ptx), arch);
            cubin = read_file(path);
            if (arch % 10 == 0)
                break;
        }
    }
    return cubin;
}
