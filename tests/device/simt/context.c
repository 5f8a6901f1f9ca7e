/* Switching between stacks; see context.h. */
#include "tests/device/simt/context.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define HAS_TSAN 1
#else
#define HAS_TSAN 0
#endif

#define STACK_BYTES (256 << 10) /* touched as far as used */
#define GUARD_BYTES 4096

struct mp_context {
    void *stack; /* NULL: not ours */
    void (*fn)(void *arg);
    void *arg;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t registers;
#endif
    void *fake_stack, *tsan; /* of the sanitizers */
    const void *bottom;      /* of the stack, for the address sanitizer */
    size_t bytes;
};

/* Who switched to the context that starts or goes on now, and which one that is. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct mp_context *switched_from,
    *switched_to;

static void switch_begin(struct mp_context *from, struct mp_context *to)
{
    switched_from = from;
    switched_to = to;
#if HAS_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->bytes);
#endif
#if HAS_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
}

/* On the stack that was switched to. */
static void switch_end(void)
{
#if HAS_ASAN
    __sanitizer_finish_switch_fiber(switched_to->fake_stack, &switched_from->bottom,
                                    &switched_from->bytes);
#endif
}

static void start(void)
{
    struct mp_context *context = switched_to;

    switch_end();
    context->fn(context->arg);
    abort(); /* fn never returns */
}

#ifdef __x86_64__
/* void switch_stacks(void **from_sp, void *to_sp): what a function must keep goes to the stack. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl mp_simt_switch_stacks\n"
        ".hidden mp_simt_switch_stacks\n"
        ".type mp_simt_switch_stacks, @function\n"
        "mp_simt_switch_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size mp_simt_switch_stacks, . - mp_simt_switch_stacks\n");
void mp_simt_switch_stacks(void **from_sp, void *to_sp);

/* The stack as a switch leaves it, with start() as the place to return to. */
static void prepare(struct mp_context *context)
{
    uintptr_t *top = (uintptr_t *)((char *)context->stack + GUARD_BYTES + STACK_BYTES);

    *--top = 0; /* start() has the alignment of a called function, and no caller */
    *--top = (uintptr_t)start;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    context->sp = top;
}

static void switch_registers(struct mp_context *from, struct mp_context *to)
{
    mp_simt_switch_stacks(&from->sp, to->sp);
}
#else
static void prepare(struct mp_context *context)
{
    getcontext(&context->registers);
    context->registers.uc_stack.ss_sp = (char *)context->stack + GUARD_BYTES;
    context->registers.uc_stack.ss_size = STACK_BYTES;
    context->registers.uc_link = NULL;
    makecontext(&context->registers, start, 0);
}

static void switch_registers(struct mp_context *from, struct mp_context *to)
{
    swapcontext(&from->registers, &to->registers);
}
#endif

struct mp_context *mp_context_open(void (*fn)(void *arg), void *arg)
{
    struct mp_context *context = calloc(1, sizeof(*context));

    if (context == NULL)
        return NULL;
    context->stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (context->stack == MAP_FAILED) {
        free(context);
        return NULL;
    }
    (void)mprotect(context->stack, GUARD_BYTES, PROT_NONE);
    context->fn = fn;
    context->arg = arg;
    context->bottom = (char *)context->stack + GUARD_BYTES;
    context->bytes = STACK_BYTES;
#if HAS_TSAN
    context->tsan = __tsan_create_fiber(0);
#endif
    prepare(context);
    return context;
}

struct mp_context *mp_context_open_own(void)
{
    struct mp_context *context = calloc(1, sizeof(*context));

#if HAS_TSAN
    if (context != NULL)
        context->tsan = __tsan_get_current_fiber();
#endif
    return context;
}

void mp_context_close(struct mp_context *context)
{
    if (context == NULL)
        return;
#if HAS_TSAN
    if (context->stack != NULL)
        __tsan_destroy_fiber(context->tsan);
#endif
#if HAS_ASAN
    if (context->stack != NULL)
        __asan_unpoison_memory_region(context->stack, GUARD_BYTES + STACK_BYTES);
#endif
    if (context->stack != NULL)
        munmap(context->stack, GUARD_BYTES + STACK_BYTES);
    free(context);
}

void mp_context_switch(struct mp_context *from, struct mp_context *to)
{
    switch_begin(from, to);
    switch_registers(from, to);
    switch_end();
}
