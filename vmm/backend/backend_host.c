/*
 * The backend for machines without a device, or that do not use it: frames are anonymous memory,
 * and both the device tier and the host tier are parts of RAM. What the pager calls the device tier
 * is then a budget: compute reads slots through their aliases.
 *
 * A frame's pages are allocated at their first write, so an unused tier costs nothing, and a used
 * one never more than its frames' bytes: huge pages lie completely inside a frame. MAP_NORESERVE is
 * not used, so a kernel with strict overcommit accounting refuses here and not later.
 *
 * With a memory file all frames are in one mapping of it, so the address of an alias determines its
 * offset in the file.
 */
#include "vmm/backend/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/topo/memory_room.h"

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

struct host_backend {
    struct mp_backend super;
    uint64_t page_bytes, align_bytes;
    int numa_node; /* -1: anywhere */
    bool huge_pages;

    int file_fd; /* -1: none */
    char *file_base;
    uint64_t file_bytes, file_used_bytes;
};

static enum mp_status check_node(int node)
{
    mp_assert(node >= 0);
    if (numa_available() < 0) {
        mp_log_debug("host", "no NUMA here, memory goes anywhere");
        return MP_OK;
    }
    if (node > numa_max_node() || !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node))
        return mp_fail(MP_ERR_CONFIG, "E_NUMA_NODE",
                       "NUMA node %d has no memory for this process; the highest node is %d", node,
                       numa_max_node());
    return MP_OK;
}

static void host_close(struct mp_backend *backend)
{
    struct host_backend *host = mp_container_of(backend, struct host_backend, super);

    if (host->file_fd >= 0) {
        munmap(host->file_base, host->file_bytes);
        close(host->file_fd);
    }
    free(host);
}

int mp_backend_host_file(const struct mp_backend *backend, const void *address, uint64_t *offset_p)
{
    const struct host_backend *host;
    uint64_t offset;

    if (backend->ops != &mp_backend_host)
        return -1;
    host = (const struct host_backend *)(const void *)((const char *)backend -
                                                       offsetof(struct host_backend, super));
    offset = (uint64_t)((uintptr_t)address - (uintptr_t)host->file_base);
    if (host->file_fd < 0 || offset >= host->file_used_bytes)
        return -1;
    *offset_p = offset;
    return host->file_fd;
}

static enum mp_status check_tier(const struct mp_backend *backend, enum mp_tier_kind tier)
{
    if ((unsigned)tier < MP_TIER_KIND_COUNT && (backend->caps.tiers & 1u << tier) != 0)
        return MP_OK;
    return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "backend host has no %s tier",
                   mp_tier_kind_name(tier));
}

static enum mp_status host_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                       uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    const enum mp_status status = check_tier(backend, tier);
    struct mp_memory_room room;

    if (status != MP_OK)
        return status;
    mp_memory_room_read("", &room);
    if (room.total_bytes == 0) /* no /proc here */
        room.total_bytes = room.room_bytes =
            (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    *total_bytes_p = room.limit_bytes < room.total_bytes ? room.limit_bytes : room.total_bytes;
    *free_bytes_p = room.room_bytes < *total_bytes_p ? room.room_bytes : *total_bytes_p;
    mp_assert(*free_bytes_p <= *total_bytes_p);
    return MP_OK;
}

static enum mp_status fail_mmap(uint64_t bytes)
{
    return mp_fail(MP_ERR_NO_SPACE, "E_DEVICE_MEMORY",
                   "cannot map a frame of %" PRIu64 " bytes: %s; lower --budget, or raise "
                   "vm.max_map_count or the address space limit",
                   bytes, strerror(errno));
}

/* Map `bytes` at a multiple of `align_bytes`, cutting off what alignment needed more. */
static enum mp_status map_aligned(uint64_t bytes, uint64_t align_bytes, uint64_t page_bytes,
                                  void **alias_p)
{
    const uint64_t extra = align_bytes > page_bytes ? align_bytes - page_bytes : 0;
    uint64_t whole, head;
    char *base;

    mp_assert(bytes > 0 && align_bytes % page_bytes == 0);
    if (!mp_add_u64(bytes, extra, &whole) || whole > SIZE_MAX / 2) {
        errno = ENOMEM;
        return fail_mmap(bytes);
    }
    base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return fail_mmap(bytes);
    head = (align_bytes - (uintptr_t)base % align_bytes) % align_bytes;

    /* Cutting can be refused at the limit of mappings. What is given back must not be touched
     * again: another thread may have got those addresses. */
    if (head > 0 && munmap(base, head) != 0) {
        const enum mp_status status = fail_mmap(bytes);

        munmap(base, whole);
        return status;
    }
    if (extra > head && munmap(base + head + bytes, extra - head) != 0) {
        const enum mp_status status = fail_mmap(bytes);

        munmap(base + head, whole - head);
        return status;
    }
    *alias_p = base + head;
    return MP_OK;
}

/* Beyond the limit on files (ulimit -f) ftruncate() ends the program with SIGXFSZ. */
static int set_file_bytes(int fd, uint64_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
        errno = EFBIG;
        return -1;
    }
    return ftruncate(fd, (off_t)bytes);
}

/* All of it at once: pages come into being when they are first written. Huge ones need addresses
 * and offsets that are equal modulo their size. */
static enum mp_status open_file(struct host_backend *host, uint64_t bytes)
{
    void *base = MAP_FAILED, *at = NULL;

    mp_assert(bytes % host->page_bytes == 0);
    if (map_aligned(bytes, HUGE_PAGE_BYTES, host->page_bytes, &at) != MP_OK)
        return MP_ERR_NO_SPACE;
    host->file_fd = memfd_create("moepager", MFD_CLOEXEC);
    if (host->file_fd >= 0 && set_file_bytes(host->file_fd, bytes) == 0)
        base = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, host->file_fd, 0);
    if (base == MAP_FAILED) {
        const enum mp_status status =
            mp_fail(MP_ERR_NO_SPACE, "E_DEVICE_MEMORY",
                    "cannot make a memory file of %" PRIu64 " bytes for frames: %s", bytes,
                    strerror(errno));

        munmap(at, bytes);
        if (host->file_fd >= 0)
            close(host->file_fd);
        return status;
    }
    host->file_base = base;
    host->file_bytes = bytes;
    return MP_OK;
}

static enum mp_status host_open(const struct mp_backend_config *config, struct mp_backend *inner,
                                struct mp_backend **backend_p)
{
    struct host_backend *host;
    uint64_t maps, maps_now;

    mp_assert(inner == NULL);
    (void)inner;
    if (config->numa_node >= 0) {
        const enum mp_status status = check_node(config->numa_node);

        if (status != MP_OK)
            return status;
    }
    host = calloc(1, sizeof(*host));
    if (host == NULL)
        return mp_fail_no_memory("the host backend", sizeof(*host));

    if (!mp_memory_maps_read("", &maps_now, &maps))
        maps = 65530; /* the kernel's own default */
    host->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    host->align_bytes =
        config->align_bytes > host->page_bytes ? config->align_bytes : host->page_bytes;
    host->numa_node = config->numa_node >= 0 && numa_available() >= 0 ? config->numa_node : -1;
    host->huge_pages = config->huge_pages;
    host->file_fd = -1;
    if (config->memory_file_bytes > 0) {
        const enum mp_status status =
            open_file(host, mp_round_down_u64(config->memory_file_bytes, host->page_bytes));

        if (status != MP_OK) {
            free(host);
            return status;
        }
        host->align_bytes = host->page_bytes;
    }
    host->super.ops = &mp_backend_host;
    host->super.caps = (struct mp_backend_caps){
        .granule_bytes = host->page_bytes,
        .alias_align_bytes = host->align_bytes,
        .frame_bytes_max = UINT64_C(1) << 46,
        .frames_max = maps > 2 * MP_MEMORY_MAPS_SPARE ? (uint32_t)(maps - MP_MEMORY_MAPS_SPARE)
                                                      : MP_MEMORY_MAPS_SPARE,
        .tiers = 1u << MP_TIER_DEVICE | 1u << MP_TIER_HOST,
        .layouts = 1u << MP_LAYOUT_FILE | 1u << MP_LAYOUT_PACKED,
        .cpu_access = true,
        .file_target = true,
        .collapse = host->huge_pages && host->file_fd >= 0,
    };
    *backend_p = &host->super;
    return MP_OK;
}

/* Advice only: a kernel that ignores it is slower, not wrong. */
static void advise(const struct host_backend *host, void *alias, uint64_t bytes)
{
    mp_assert(alias != NULL);
    if (host->huge_pages && host->file_fd < 0 && bytes >= HUGE_PAGE_BYTES &&
        madvise(alias, bytes, MADV_HUGEPAGE) != 0)
        mp_log_once(MP_LOG_DEBUG, "host", "no huge pages: %s", strerror(errno));
    if (host->numa_node >= 0) {
        struct bitmask *nodes = numa_allocate_nodemask();

        if (nodes == NULL) {
            mp_log_once(MP_LOG_WARN, "host", "no memory for a node mask, frames go anywhere");
            return;
        }
        numa_bitmask_setbit(nodes, (unsigned)host->numa_node);
        if (mbind(alias, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) != 0)
            mp_log_once(MP_LOG_WARN, "host", "cannot place frames on node %d: %s", host->numa_node,
                        strerror(errno));
        numa_bitmask_free(nodes);
    }
}

/* The next part of the memory file. */
static enum mp_status take_from_file(struct host_backend *host, uint64_t bytes, void **alias_p)
{
    mp_assert(host->file_used_bytes <= host->file_bytes);
    if (bytes > host->file_bytes - host->file_used_bytes) {
        errno = ENOMEM;
        return fail_mmap(bytes);
    }
    *alias_p = host->file_base + host->file_used_bytes;
    host->file_used_bytes += bytes;
    return MP_OK;
}

static enum mp_status host_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                        uint64_t bytes, struct mp_frame *frame_p)
{
    struct host_backend *host = mp_container_of(backend, struct host_backend, super);
    uint64_t align_bytes = host->align_bytes;
    void *alias = NULL;
    enum mp_status status = check_tier(backend, tier);

    if (status != MP_OK)
        return status;
    if (bytes == 0 || bytes % host->page_bytes != 0)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                       "a frame of %" PRIu64 " bytes is not a multiple of the page size", bytes);
    if (bytes > backend->caps.frame_bytes_max) {
        errno = ENOMEM;
        return fail_mmap(bytes);
    }
    if (host->huge_pages && host->file_fd < 0 && bytes >= HUGE_PAGE_BYTES &&
        align_bytes < HUGE_PAGE_BYTES)
        align_bytes = HUGE_PAGE_BYTES;
    status = host->file_fd >= 0 ? take_from_file(host, bytes, &alias)
                                : map_aligned(bytes, align_bytes, host->page_bytes, &alias);
    if (status != MP_OK)
        return status;
    advise(host, alias, bytes);

    mp_assert((uintptr_t)alias % host->align_bytes == 0);
    *frame_p = (struct mp_frame){
        .handle = (uint64_t)(uintptr_t)alias,
        .alias = alias,
        .bytes = bytes,
        .tier = tier,
    };
    return MP_OK;
}

static void host_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    struct host_backend *host = mp_container_of(backend, struct host_backend, super);

    mp_assert(frame->handle == (uint64_t)(uintptr_t)frame->alias && frame->handle != 0);
    if (host->file_fd >= 0) {
        /* The addresses stay mapped; those of the last frame are used again. */
        const uint64_t at = (uint64_t)((char *)frame->alias - host->file_base);

        if (at + frame->bytes == host->file_used_bytes)
            host->file_used_bytes = at;
        if (fallocate(host->file_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                      (off_t)frame->bytes) != 0)
            mp_log_error("host", "cannot free a frame of %" PRIu64 " bytes: %s", frame->bytes,
                         strerror(errno));
    } else if (munmap(frame->alias, frame->bytes) != 0)
        mp_log_error("host", "cannot unmap a frame of %" PRIu64 " bytes: %s", frame->bytes,
                     strerror(errno));
    memset(frame, 0, sizeof(*frame));
}

const struct mp_backend_ops mp_backend_host = {
    .name = "host",
    .summary = "RAM with a budget; compute on the CPU",
    .open = host_open,
    .close = host_close,
    .memory_info = host_memory_info,
    .frame_create = host_frame_create,
    .frame_destroy = host_frame_destroy,
};
