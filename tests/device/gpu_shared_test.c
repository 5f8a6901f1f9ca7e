/*
 * Shared memory of kernels on devices of each architecture, on the driver without a device: a
 * kernel gets what a block of the architecture may have, and the byte above is refused by name.
 */
#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/device/gpu_work.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

/* By NVIDIA's programming guide, technical specifications per compute capability. */
static const struct limit {
    const char *capability;
    uint32_t bytes;
} limits[] = {
    { "75", 64 << 10 },  { "80", 163 << 10 },  { "86", 99 << 10 },  { "89", 99 << 10 },
    { "90", 227 << 10 }, { "100", 227 << 10 }, { "120", 99 << 10 },
};
static const struct limit *device;

static struct mp_cuda_attend of_width(uint32_t head_dim)
{
    return (struct mp_cuda_attend){ .heads = 1, .kv_heads = 1, .head_dim = head_dim, .tokens = 1 };
}

static uint32_t shared_of(uint32_t head_dim)
{
    const struct mp_cuda_attend attend = of_width(head_dim);

    return mp_cuda_kernel_grid(MP_CUDA_KERNEL_attend_f32, &attend).shared_bytes;
}

/* To the byte, by the driver itself. */
static void a_block_may_have_what_its_architecture_has(void)
{
    const int most = (int)device->bytes;
    const struct mp_cuda *cuda;
    mp_cu_function spin = NULL;
    mp_cu_module module = NULL;
    struct work w;

    CHECK_EQ(open_work(&w), MP_OK);
    cuda = mp_gpu_driver(w.gpu);
    CHECK_EQ(cuda->call.module_load(&module, mp_cuda_image, 0, NULL, NULL), MP_CU_SUCCESS);
    CHECK_EQ(cuda->call.module_function(&spin, module, "mp_spin"), MP_CU_SUCCESS);
    CHECK_EQ(cuda->call.function_set(spin, MP_CU_FUNCTION_SHARED_BYTES_MAX, most + 1),
             MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda->call.function_set(spin, MP_CU_FUNCTION_SHARED_BYTES_MAX, most), MP_CU_SUCCESS);
    CHECK_EQ(cuda->call.module_unload(module), MP_CU_SUCCESS);
    close_work(&w);
    check_nothing_lives();
}

/* The widest head that still fits is asked for; the launch is made to fail, so nothing runs. */
static void a_kernel_that_wants_more_is_refused_by_name(void)
{
    struct mp_cuda_attend attend;
    uint32_t widest = 1;
    struct work w;

    while (shared_of(widest + 1) <= device->bytes)
        widest++;
    CHECK(shared_of(widest) > 48u << 10);
    CHECK_EQ(open_work(&w), MP_OK);
    fake_api.reset();
    fake_api.fail("cuLaunchKernel", 0, 1, true);
    attend = of_width(widest);
    CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend_f32, &attend), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cuLaunchKernel of mp_attend_f32") != NULL);
    CHECK_EQ(fake_api.calls("cuFuncSetAttribute"), 1);
    attend = of_width(widest + 1);
    CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend_f32, &attend), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK(strstr(mp_error_last()->text, "cuFuncSetAttribute of mp_attend_f32") != NULL);
    CHECK_EQ(fake_api.calls("cuLaunchKernel"), 1);
    fake_api.reset();
    mp_error_clear();
    close_work(&w);
    check_nothing_lives();
}

int main(int argc, char **argv)
{
    const char *capability = argc > 1 ? argv[1] + strlen("sm_") : "90";

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (strcmp(limits[i].capability, capability) == 0)
            device = &limits[i];
    CHECK(device != NULL);
    CHECK_EQ(setenv("FAKECUDA_CAPABILITY", capability, 1), 0);
    find_fake();
    RUN(a_block_may_have_what_its_architecture_has);
    RUN(a_kernel_that_wants_more_is_refused_by_name);
    return 0;
}
