#ifndef MP_TEST_CUDA_RUN_H
#define MP_TEST_CUDA_RUN_H

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/tiles.h"
#include "tests/device/fakecuda/simt.h"
#include "tests/unit/kernels/blocks.h"

/*
 * Kernels of a device, run on the CPU (tests/device/simt). Operands are buffers from operand();
 * during a launch those that the kernel does not name (touches()) cannot be accessed, and those
 * that it only reads cannot be written. So a launch that goes beyond what it says is a fault.
 */
#define OPERANDS_MAX 64

static struct {
    struct guarded memory;
    int named, written;
} operands[OPERANDS_MAX];
static size_t operand_count;

static inline void *operand(size_t bytes)
{
    CHECK(operand_count < OPERANDS_MAX);
    operands[operand_count].memory = guarded_alloc(bytes);
    return operands[operand_count++].memory.p;
}

static inline float *floats(size_t count)
{
    float *p = operand(count * sizeof(*p));

    fill_random(p, count, 1);
    return p;
}

static inline void free_operands(void)
{
    while (operand_count > 0)
        guarded_free(&operands[--operand_count].memory);
}

static inline bool name_range(void *ctx, uint64_t address, uint64_t bytes, bool write)
{
    (void)ctx;
    for (size_t i = 0; i < operand_count; i++) {
        const uint64_t start = (uintptr_t)operands[i].memory.p;

        if (address >= start && address + bytes <= start + operands[i].memory.bytes) {
            operands[i].named = 1;
            operands[i].written |= write;
            return true;
        }
    }
    fprintf(stderr, "a range of %llu bytes is in no operand\n", (unsigned long long)bytes);
    exit(1);
}

static inline void protect_operands(int on)
{
    for (size_t i = 0; i < operand_count; i++) {
        const int may = operands[i].written ? PROT_READ | PROT_WRITE
                                            : (operands[i].named ? PROT_READ : PROT_NONE);

        CHECK_EQ(mprotect(operands[i].memory.map, operands[i].memory.map_bytes - 4096,
                          on ? may : PROT_READ | PROT_WRITE),
                 0);
    }
}

static inline void launch(enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(kernel, params);
    const struct mp_simt_kernel *k = mp_simt_find(mp_cuda_kernel_name(kernel));
    const char *error;

    CHECK(k != NULL);
    CHECK_EQ(k->params_bytes, mp_cuda_kernel_bytes(kernel));
    for (size_t i = 0; i < operand_count; i++)
        operands[i].named = operands[i].written = 0;
    if (grid.x == 0)
        return;
    k->touches(params, name_range, NULL);
    protect_operands(1);
    error = k->run(params, (struct mp_simt_dim){ grid.x, grid.y, grid.z },
                   (struct mp_simt_dim){ grid.threads, 1, 1 }, grid.shared_bytes);
    protect_operands(0);
    if (error != NULL)
        fprintf(stderr, "%s: %s\n", k->name, error);
    CHECK(error == NULL);
}

static inline uint64_t at(const void *p)
{
    return (uintptr_t)p;
}

/* Random weights of magnitude about 1 or less; of quantised types about 8. */
static inline void fill_weights(void *to, enum mp_wtype type, size_t count)
{
    if (type >= MP_WTYPE_PLAIN_COUNT) {
        random_blocks(to, type, count / mp_wtype_info(type)->block_elements);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const float f = random_float();
        uint16_t h = (uint16_t)(float_bits(f) >> 16);

        if (type == MP_WTYPE_F16)
            h = (uint16_t)((random_u32() & 0x83ff) | (random_u32() % 15) << 10);
        if (type == MP_WTYPE_F32)
            memcpy((char *)to + i * 4, &f, 4);
        else
            memcpy((char *)to + i * 2, &h, 2);
    }
}

static inline void *weights(enum mp_wtype type, size_t count)
{
    void *p = operand(mp_wtype_bytes(type, count));

    fill_weights(p, type, count);
    return p;
}

/* Weights as floats, exactly. */
static inline float *widen(const void *w, enum mp_wtype type, size_t count)
{
    float *p = malloc((count + 1) * sizeof(*p));

    CHECK(p != NULL);
    mp_kernels_ref.convert(p, w, type, count);
    return p;
}

/* Run `test` with the threads of a block in each order. */
static inline void each_order(const char *what, void (*test)(void))
{
    static const char *const names[] = { "forward", "backward", "mixed" };

    for (int order = MP_SIMT_FORWARD; order <= MP_SIMT_MIXED; order++) {
        fprintf(stderr, "  %s: threads %s\n", what, names[order]);
        mp_simt_set_order((enum mp_simt_order)order);
        test();
    }
}

#endif
