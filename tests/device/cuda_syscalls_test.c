/*
 * System calls of a step on the driver without a device, those of moepager apart from those of that
 * driver, whose streams are threads: a filter of the kernel turns each into a signal, whose handler
 * looks whether the driver is among those who called, and makes the call. Run by hand it prints
 * the table of docs/kernels.md; as a test it holds the counts.
 *
 * Not seen are calls that begin and end threads, that change signals or protect memory, and the
 * yields of spin_awake. Ends with 77 under a sanitizer that delays signals, on other processors
 * than x86-64, and where filters are not allowed.
 */
#include "tests/support/test.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)

int main(void)
{
    return 77;
}

#else

#include <errno.h>
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/spins.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define STEPS 8u /* that are counted */
#define FRAMES 64

/* ---- the filter */

static _Atomic bool counting;
static _Atomic uint64_t own, drivers, by_number[512];
static uintptr_t driver_begin, driver_end; /* its code */
static _Thread_local bool inside;          /* the handler */

/* Those of this place are let through. */
long test_call(long number, const long *arguments);
extern const char test_called[];
__asm__(".text\n"
        "test_call:\n"
        "    mov %rdi, %rax\n"
        "    mov %rsi, %r11\n"
        "    mov 0(%r11), %rdi\n"
        "    mov 8(%r11), %rsi\n"
        "    mov 16(%r11), %rdx\n"
        "    mov 24(%r11), %r10\n"
        "    mov 32(%r11), %r8\n"
        "    mov 40(%r11), %r9\n"
        "    syscall\n"
        "test_called:\n"
        "    ret\n");

static bool driver_calls(void)
{
    void *frames[FRAMES];
    const int count = backtrace(frames, FRAMES);

    for (int i = 0; i < count; i++) {
        if ((uintptr_t)frames[i] >= driver_begin && (uintptr_t)frames[i] < driver_end)
            return true;
    }
    return false;
}

static void make_call(int signal, siginfo_t *info, void *context)
{
    greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
    const long arguments[6] = { reg[REG_RDI], reg[REG_RSI], reg[REG_RDX],
                                reg[REG_R10], reg[REG_R8],  reg[REG_R9] };
    const int error = errno;

    (void)signal;
    if (counting && !inside) {
        inside = true;
        if (driver_calls()) {
            drivers++;
        } else {
            own++;
            by_number[info->si_syscall % 512]++;
        }
        inside = false;
    }
    reg[REG_RAX] = test_call(info->si_syscall, arguments);
    errno = error;
}

static int find_driver(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    if (strstr(info->dlpi_name, "libcuda.so") == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            driver_begin = info->dlpi_addr + part->p_vaddr;
            driver_end = driver_begin + part->p_memsz;
        }
    }
    return 1;
}

/* Threads are started with signals blocked; this one gets through. */
int __real_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t open;

    if (set == NULL)
        return __real_pthread_sigmask(how, set, before);
    open = *set;
    sigdelset(&open, SIGSYS);
    return __real_pthread_sigmask(how, &open, before);
}

#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, what))
#define LOAD_AT(bytes) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(bytes))
#define WHERE offsetof(struct seccomp_data, instruction_pointer)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define PASS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), RETURN(SECCOMP_RET_ALLOW)

/* False: not allowed here. */
static bool start_filter(void)
{
    const uintptr_t here = (uintptr_t)test_called;
    struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD_AT(WHERE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)here, 0, 3),
        LOAD_AT(WHERE + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(here >> 32), 0, 1),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD(nr),
        PASS(SYS_rt_sigreturn),
        PASS(SYS_rt_sigprocmask),
        PASS(SYS_rt_sigaction),
        PASS(SYS_sigaltstack),
        PASS(SYS_clone),
        PASS(SYS_clone3),
        PASS(SYS_exit),
        PASS(SYS_exit_group),
        PASS(SYS_rseq),
        PASS(SYS_set_robust_list),
        PASS(SYS_madvise),
        PASS(SYS_munmap),
        PASS(SYS_mprotect),
        PASS(SYS_prctl),
        PASS(SYS_sched_yield),
        RETURN(SECCOMP_RET_TRAP),
    };
    const struct sock_fprog program = { .len = MP_ARRAY_LEN(filter), .filter = filter };
    const struct sigaction action = { .sa_sigaction = make_call,
                                      .sa_flags = SA_SIGINFO | SA_NODEFER };
    void *frames[4];

    (void)backtrace(frames, 4); /* loads what it needs */
    CHECK_EQ(sigaction(SIGSYS, &action, NULL), 0);
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- steps */

static void feed(struct harness *h, uint32_t at)
{
    const uint32_t token = at * 11 % h->model.vocab, sequence = 0;
    const uint8_t want = 1;
    const struct mp_batch batch = {
        .count = 1, .token = &token, .sequence = &sequence, .position = &at, .want = &want
    };
    const float *logits;

    if (mp_forward(h->engine, &batch, &logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

/* moepager's calls for each of STEPS tokens: at most so many for each load; none without, but for
 * those of the reader, which waits for something to read. */
static void count(const char *what, bool graphs, unsigned percent, const struct mp_spin *spin,
                  unsigned most_per_load)
{
    const struct timespec settle = { .tv_nsec = 20000000 };
    struct harness_options options = harness_defaults(MODEL);
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    uint64_t loads;
    struct harness h;

    options.backend = "cuda";
    options.ctx = 64;
    options.graphs = graphs;
    options.spin = spin;
    options.policies.profile = "lru";
    if (percent < 100)
        options.budget_bytes =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) / 100 * percent;
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    for (uint32_t i = 0; i < 2 * STEPS; i++) /* with all experts there, and their graphs */
        feed(&h, i % STEPS);
    nanosleep(&settle, NULL);
    for (size_t i = 0; i < MP_ARRAY_LEN(by_number); i++)
        by_number[i] = 0;
    own = drivers = 0;
    loads = mp_engine_counters(h.engine)->loads;
    counting = true;
    for (uint32_t i = 0; i < STEPS; i++)
        feed(&h, i);
    counting = false;
    loads = mp_engine_counters(h.engine)->loads - loads;
    CHECK_EQ(loads > 0, percent < 100);
    printf("| %s | %.1f | %.1f |", what, (double)loads / STEPS, (double)own / STEPS);
    for (size_t i = 0; i < MP_ARRAY_LEN(by_number); i++) {
        if (by_number[i] > 0)
            printf(" %.1f of %zu", (double)by_number[i] / STEPS, i);
    }
    printf(" | %.1f |\n", (double)drivers / STEPS);
    CHECK(drivers > 0); /* else the filter sees nothing */
    CHECK(own < STEPS + most_per_load * loads);
    CHECK(own > STEPS || loads == 0);
    harness_close(&h);
    check_nothing_lives();
}

static void a_step_makes_few_system_calls(void)
{
    printf(
        "| 1 token, 4 layers | loads | moepager's | by number | the driver's without a device |\n");
    printf("|---|---|---|---|---|\n");
    count("graph", true, 100, &spin_awake, 0);
    count("graph, asleep", true, 100, &spin_asleep, 0);
    count("host-driven", false, 100, &spin_awake, 0);
    count("host-driven, asleep", false, 100, &spin_asleep, 0);
    count("host-driven, 25 %", false, 25, &spin_awake, 5);
    count("host-driven, 25 %, asleep", false, 25, &spin_asleep, 15);
    count("graphs, 25 %", true, 25, &spin_awake, 5);
    count("graphs, 25 %, asleep", true, 25, &spin_asleep, 15);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1);
    find_fake();
    CHECK(dl_iterate_phdr(find_driver, NULL) == 1 && driver_end > driver_begin);
    if (!start_filter())
        return 77;
    RUN(a_step_makes_few_system_calls);
    return 0;
}

#endif
