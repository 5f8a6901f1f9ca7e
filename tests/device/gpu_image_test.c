/*
 * Where the kernels of a device come from: a compiled file of its architecture, or PTX. On the
 * driver without a device (tests/device/fakecuda), which is 9.0 and reads PTX only: so that is what
 * the files here hold, and what a file must not hold is rubbish.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static char warned[1024];

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    snprintf(warned, sizeof(warned), "%s", line);
}

static const char *path_of(int arch)
{
    static char path[4200];
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* as tools/make_cubins */

    for (const char *c = mp_cuda_image; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    snprintf(path, sizeof(path), "%s/kernels-%016llx-sm_%d.cubin", test_tmpdir(),
             (unsigned long long)hash, arch);
    return path;
}

static void write_file(int arch, const char *text)
{
    FILE *file = fopen(path_of(arch), "w");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(text, 1, strlen(text), file), strlen(text));
    CHECK_EQ(fclose(file), 0);
}

/* Open a device with the files of `folder` and compare where its kernels are from. */
static void opens_with(const char *folder, const char *image, const char *warning)
{
    struct mp_gpu_config config = { .pdl = 0 };
    struct mp_gpu *gpu = NULL;

    snprintf(config.cubins, sizeof(config.cubins), "%s", folder);
    mp_gpu_configure(&config);
    warned[0] = '\0';
    CHECK_EQ(mp_gpu_open(0, &gpu), MP_OK);
    CHECK_STR(mp_gpu_image(gpu), image);
    CHECK(strstr(warned, warning) != NULL && (warning[0] != '\0' || warned[0] == '\0'));
    mp_gpu_close(gpu);
    check_nothing_lives();
}

static void a_file_of_the_architecture_is_taken(void)
{
    opens_with("", "PTX", "");
    opens_with(test_tmpdir(), "PTX", ""); /* an empty folder is no reason to say anything */
    write_file(89, mp_cuda_image);
    write_file(91, mp_cuda_image);
    opens_with(test_tmpdir(), "PTX", "");
    write_file(90, mp_cuda_image);
    opens_with(test_tmpdir(), path_of(90), "");
}

static void a_file_that_is_no_good_costs_a_warning(void)
{
    char beneath[4300];

    write_file(90, "rubbish");
    opens_with(test_tmpdir(), "PTX", "refuses");
    write_file(90, "");
    opens_with(test_tmpdir(), "PTX", "read -1 of 0 bytes");
    snprintf(beneath, sizeof(beneath), "%s/folder", path_of(90));
    opens_with(beneath, "PTX", "Not a directory");
}

/* The greatest file is read, and then the driver says what it holds. */
static void a_file_has_at_most_64_mib(void)
{
    write_file(90, "rubbish");
    CHECK_EQ(truncate(path_of(90), 64 << 20), 0);
    opens_with(test_tmpdir(), "PTX", "refuses");
    CHECK_EQ(truncate(path_of(90), (64 << 20) + 1), 0);
    opens_with(test_tmpdir(), "PTX", "read -1 of 67108865 bytes");
}

static void a_driver_that_is_lost_meanwhile_is_an_error(void)
{
    struct mp_gpu *gpu = NULL;

    write_file(90, mp_cuda_image);
    opens_with(test_tmpdir(), path_of(90), "");
    fake_api.fail("cuModuleLoadDataEx", 0, 700, false);
    CHECK_EQ(mp_gpu_open(0, &gpu), MP_ERR_DEVICE);
    fake_api.lose(0);
    fake_api.clear();
    fake_api.fail("cuModuleLoadDataEx", 0, 209, false); /* no code for this device in it */
    opens_with(test_tmpdir(), "PTX", "(209)");
}

static void body(const struct fault_plan *plan, void *ctx)
{
    struct mp_gpu *gpu = NULL;
    enum mp_status status;

    (void)ctx;
    fault_begin(plan);
    status = mp_gpu_open(0, &gpu);
    (void)fault_end();
    CHECK(status == MP_OK || status == MP_ERR_NO_MEMORY);
    if (status == MP_OK)
        CHECK(plan->mode != FAULT_COUNT || strcmp(mp_gpu_image(gpu), path_of(90)) == 0);
    mp_gpu_close(gpu);
    fake_api.reset();
}

static void whatever_fails_while_it_is_read_there_is_the_ptx(void)
{
    (void)fault_sweep(FAULT_BIT(open) | FAULT_BIT(fstat) | FAULT_BIT(malloc) | FAULT_BIT(pread),
                      body, NULL);
}

/* A folder has no files of kernels that begin early: these have another sum. */
static void kernels_that_begin_early_are_another_text(void)
{
    struct mp_gpu_config config = { .pdl = 1 };
    struct mp_gpu *gpu = NULL;

    write_file(90, mp_cuda_image);
    snprintf(config.cubins, sizeof(config.cubins), "%s", test_tmpdir());
    mp_gpu_configure(&config);
    CHECK_EQ(mp_gpu_open(0, &gpu), MP_OK);
    CHECK(mp_gpu_is_early(gpu));
    CHECK_STR(mp_gpu_image(gpu), "PTX");
    mp_gpu_close(gpu);
}

static void early_body(const struct fault_plan *plan, void *ctx)
{
    struct mp_gpu *gpu = NULL;
    enum mp_status status;

    (void)ctx;
    fault_begin(plan);
    status = mp_gpu_open(0, &gpu);
    CHECK_EQ(status, fault_end() > 0 && plan->mode != FAULT_COUNT ? MP_ERR_NO_MEMORY : MP_OK);
    mp_gpu_close(gpu);
    check_nothing_lives();
    fake_api.reset();
}

static void without_memory_for_that_text_there_is_no_device(void)
{
    CHECK(fault_sweep(FAULT_BIT(strdup), early_body, NULL) > 0);
}

int main(void)
{
    find_fake();
    mp_log_set_sink(keep_line, NULL);
    RUN(a_file_of_the_architecture_is_taken);
    RUN(a_file_that_is_no_good_costs_a_warning);
    RUN(a_file_has_at_most_64_mib);
    RUN(a_driver_that_is_lost_meanwhile_is_an_error);
    RUN(whatever_fails_while_it_is_read_there_is_the_ptx);
    RUN(kernels_that_begin_early_are_another_text);
    RUN(without_memory_for_that_text_there_is_no_device);
    return 0;
}
