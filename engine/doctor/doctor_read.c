/*
 * Facts of this machine: from /proc and /sys, from the kernel's answers, and from reading a file.
 */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/doctor/doctor.h"
#include "kernels/cpu/kernels.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"

#define BLOCK_BYTES (UINT64_C(8) << 20)
#define DISK_NS UINT64_C(500000000)
#define STRIDE 7 /* blocks: no read-ahead guesses the next one */

/* The first line of a file below `root`; empty if it cannot be read. */
static void read_line(const char *root, const char *path, char *line, size_t bytes)
{
    char full[512];
    FILE *file = NULL;

    line[0] = '\0';
    if ((size_t)snprintf(full, sizeof(full), "%s%s", root, path) < sizeof(full))
        file = fopen(full, "re");
    if (file == NULL)
        return;
    if (fgets(line, (int)bytes, file) == NULL)
        line[0] = '\0';
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
}

/* The chosen one of "always [madvise] never". */
static void read_huge_pages(const char *root, char *out, size_t bytes)
{
    char line[128];
    const char *open, *close;

    out[0] = '\0';
    read_line(root, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
    open = strchr(line, '[');
    close = open != NULL ? strchr(open, ']') : NULL;
    if (close != NULL)
        snprintf(out, bytes, "%.*s", (int)(close - open - 1), open + 1);
}

static int try_uring(void)
{
    struct io_uring ring;
    const int error_number = -io_uring_queue_init(8, &ring, 0);

    if (error_number == 0)
        io_uring_queue_exit(&ring);
    return error_number;
}

void mp_doctor_read(const char *root, const struct mp_topology *topology,
                    struct mp_doctor_facts *facts)
{
    const struct mp_cuda *cuda;
    struct rlimit limit;
    uint64_t maps;

    memset(facts, 0, sizeof(*facts));
    facts->kernels = mp_kernels_best()->name;
    facts->nodes = topology->node_count;
    facts->cores = topology->core_count;
    mp_memory_room_read(root, &facts->room);
    if (!mp_memory_maps_read(root, &maps, &facts->maps_max))
        facts->maps_max = 0;
    read_huge_pages(root, facts->huge_pages, sizeof(facts->huge_pages));
    read_line(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", facts->governor,
              sizeof(facts->governor));
    facts->uring_error = try_uring();
    facts->memlock_bytes = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        facts->memlock_bytes = limit.rlim_cur;
    if (mp_cuda_get(&cuda) == MP_OK) {
        facts->devices = cuda->devices;
    } else {
        snprintf(facts->driver, sizeof(facts->driver), "%s", mp_error_last()->text);
        mp_error_clear(); /* having no device is no failure */
    }
}

static uint32_t largest(const struct mp_files *files)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < mp_files_count(files); i++) {
        if (mp_files_bytes(files, i) > mp_files_bytes(files, best))
            best = i;
    }
    return best;
}

/* One block; a direct read that fails or is short is repeated buffered, which says why. */
static enum mp_status read_block(struct mp_files *files, uint32_t file, int direct_fd,
                                 uint64_t offset, uint64_t bytes, void *block)
{
    if (direct_fd >= 0 && pread(direct_fd, block, bytes, (off_t)offset) == (ssize_t)bytes)
        return MP_OK;
    return mp_files_read(files, file, offset, bytes, block);
}

enum mp_status mp_doctor_read_disk(struct mp_files *files, struct mp_clock *clock,
                                   struct mp_doctor_facts *facts)
{
    const uint32_t file = largest(files);
    const uint64_t size = mp_files_bytes(files, file);
    const uint64_t bytes = size < BLOCK_BYTES ? size : BLOCK_BYTES, blocks = size / bytes;
    uint32_t align = 0;
    const int direct_fd = size < BLOCK_BYTES ? -1 : mp_files_direct_fd(files, file, &align);
    uint64_t total = 0, ns = 0;
    void *block;
    enum mp_status status = MP_OK;

    block = aligned_alloc(65536, BLOCK_BYTES);
    if (block == NULL)
        return mp_fail_no_memory("a block of a file", BLOCK_BYTES);
    memset(block, 0, BLOCK_BYTES);
    for (uint64_t i = 0; i < blocks && ns < DISK_NS && status == MP_OK; i++) {
        const uint64_t at = blocks % STRIDE == 0 ? i : i * STRIDE % blocks;
        const uint64_t start_ns = mp_clock_now_ns(clock);

        status = read_block(files, file, direct_fd, at * bytes, bytes, block);
        ns += mp_clock_now_ns(clock) - start_ns;
        total += bytes;
    }
    free(block);
    if (status == MP_OK) {
        facts->disk_bytes_per_s = (double)total * 1e9 / (double)(ns > 0 ? ns : 1);
        facts->disk_direct = direct_fd >= 0;
    }
    return status;
}
