/*
 * A process that has almost as many mappings as it may have: a driver that says "out of memory"
 * then has run out of those, and the error has to say so. The mappings are real; the driver without
 * a device (tests/device/fakecuda) is made to refuse.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/backend/backend.h"
#include "vmm/base/error.h"
#include "vmm/topo/memory_room.h"

#define LEFT 40 /* of the limit, for the program itself; within what counts as none */
#define TOO_MANY UINT64_C(4000000) /* a machine without such a limit, in effect */

static const struct mp_backend_config anywhere = { .numa_node = -1 };

static uint64_t mappings_left(void)
{
    uint64_t count, max;

    if (!mp_memory_maps_read("", &count, &max) || max > TOO_MANY) {
        fprintf(stderr, "skipped: the kernel's limit of mappings is not known, or too large\n");
        exit(77);
    }
    return max > count ? max - count : 0;
}

/* Every second page is of another kind than its neighbours: as many mappings as pages. */
static char *take_mappings(uint64_t count, uint64_t *bytes_p)
{
    char *pages;

    *bytes_p = (count + 1) * 4096;
    pages = mmap(NULL, *bytes_p, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pages != MAP_FAILED);
    for (uint64_t i = 0; i < count; i += 2)
        CHECK_EQ(mprotect(pages + (i + 1) * 4096, 4096, PROT_READ), 0);
    return pages;
}

/* Give taken mappings back until so many are left: two by two, and one where the first page becomes
 * of the kind of its neighbour. */
static void leave_mappings(char *pages, uint64_t bytes, uint64_t left)
{
    const uint64_t count = bytes / 4096 - 1;
    char *page = pages + ((count - 1) / 2 * 2 + 1) * 4096;

    CHECK_EQ(mprotect(pages, 4096, PROT_NONE), 0);
    for (; mappings_left() + 1 < left; page -= 2 * 4096)
        CHECK_EQ(mprotect(page, 4096, PROT_NONE), 0);
    if (mappings_left() < left)
        CHECK_EQ(mprotect(pages, 4096, PROT_READ), 0);
    CHECK_EQ(mappings_left(), left);
}

static void refuse_a_frame(struct mp_backend *backend, const char *call, int result,
                           enum mp_status status, const char *code)
{
    struct mp_frame frame;

    fake_api.reset();
    fake_api.fail(call, 0, result, false);
    CHECK_EQ(
        backend->ops->frame_create(backend, MP_TIER_DEVICE, backend->caps.granule_bytes, &frame),
        status);
    CHECK_STR(mp_error_last()->code, code);
}

static void out_of_mappings_is_reported_as_that(void)
{
    static const char *const create = "cuMemCreate", *const reserve = "cuMemAddressReserve";
    struct mp_backend *backend = NULL;
    struct mp_frame frame;
    uint64_t bytes;
    char *pages;

    CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_OK);
    refuse_a_frame(backend, create, MP_CU_ERROR_OUT_OF_MEMORY, MP_ERR_NO_SPACE, "E_CUDA_MEMORY");
    pages = take_mappings(mappings_left() - LEFT, &bytes);
    CHECK(mappings_left() <= LEFT + 2);
    refuse_a_frame(backend, create, MP_CU_ERROR_OUT_OF_MEMORY, MP_ERR_NO_SPACE, "E_CUDA_MAPPINGS");
    CHECK(strstr(mp_error_last()->text, "cuMemCreate of a device frame") != NULL);
    CHECK(strstr(mp_error_last()->text, "vm.max_map_count") != NULL);
    refuse_a_frame(backend, create, MP_CU_ERROR_UNKNOWN, MP_ERR_DEVICE,
                   "E_CUDA"); /* not everything is */
    /* The first call, which finds just as many as we leave. */
    leave_mappings(pages, bytes, 63);
    refuse_a_frame(backend, reserve, MP_CU_ERROR_OUT_OF_MEMORY, MP_ERR_NO_SPACE, "E_CUDA_MAPPINGS");
    leave_mappings(pages, bytes, 64);
    refuse_a_frame(backend, reserve, MP_CU_ERROR_OUT_OF_MEMORY, MP_ERR_NO_SPACE, "E_CUDA_MEMORY");
    CHECK_EQ(munmap(pages, bytes), 0);
    refuse_a_frame(backend, create, MP_CU_ERROR_OUT_OF_MEMORY, MP_ERR_NO_SPACE, "E_CUDA_MEMORY");
    CHECK_EQ(
        backend->ops->frame_create(backend, MP_TIER_DEVICE, backend->caps.granule_bytes, &frame),
        MP_OK);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

int main(void)
{
    find_fake();
    RUN(out_of_mappings_is_reported_as_that);
    return 0;
}
