#ifndef MP_BASE_SPIN_H
#define MP_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Waiting awake: what ends soon is looked at again and again, because a thread that sleeps is told
 * tens of microseconds late. For a bounded time only, and not where another thread has a use for
 * the processor.
 *
 * Thread safety: a wait is one thread's; any number of them may use one struct mp_spin.
 */
struct mp_spin {
    uint64_t ns; /* at most, for one wait; 0: a thread that waits sleeps at once */
    /* Is there a processor that nothing else wants? NULL: yes. Any thread, often. */
    bool (*spares)(void *ctx);
    void *ctx;
};

struct mp_spin_wait {
    const struct mp_spin *spin;
    uint64_t start_ns; /* 0: it has not begun */
};

/* Begin a wait; NULL: asleep. */
static inline struct mp_spin_wait mp_spin_begin(const struct mp_spin *spin)
{
    return (struct mp_spin_wait){ .spin = spin };
}

/* True: look (again) at what is waited for, after a short pause. False: sleep. */
bool mp_spin_again(struct mp_spin_wait *wait);

/* Tell the processor that this thread waits awake. */
static inline void mp_spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
