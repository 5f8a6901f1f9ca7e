/*
 * Ways to keep part of a file in memory under a program that reads all of it:
 * `bench_windows FOLDER [EXPERTS [EXPERT_MIB [SLOTS [USES]]]]` prints one JSON object.
 *
 * A file of EXPERTS experts is made in FOLDER. USES experts, at random and the same ones for each
 * way, are read one after the other, all bytes; the one that has been there for longest leaves.
 * Times are those of the processor, of the one thread that does everything, so that a busy machine
 * shows little; but read_ms is what the read took. Each way in a process of its own, which then
 * does what breaks such ways:
 *
 *     fork     a child reads an expert that is not there, and one that leaves the parent meanwhile
 *     syscall  write() of an expert that is not there
 *     closed   the program closes descriptors that it does not know, and reads
 *
 * Also what other weights take that are read again and again: from the page cache, and from
 * anonymous memory with huge pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/windows.h"

#define HAZARD_S 20
#define DENSE_BYTES ((uint64_t)256 << 20)

static uint64_t uses = 400;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "bench_windows: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* What stands at an offset of the file; never 0. */
static uint64_t word_at(uint64_t offset)
{
    return (offset + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

static void make_file(const struct bench *b, const char *path)
{
    const uint64_t words = b->expert_bytes / sizeof(uint64_t);
    uint64_t *expert = malloc(b->expert_bytes);
    FILE *file = fopen(path, "wb");

    if (file == NULL || expert == NULL)
        fail(path);
    for (uint32_t e = 0; e < b->experts; e++) {
        for (uint64_t i = 0; i < words; i++)
            expert[i] = word_at((e * words + i) * sizeof(uint64_t));
        if (fwrite(expert, b->expert_bytes, 1, file) != 1)
            fail(path);
    }
    if (fflush(file) != 0 || fsync(fileno(file)) != 0 || fclose(file) != 0)
        fail(path);
    free(expert);
}

static void open_file(struct bench *b, const char *path)
{
    b->fd = open(path, O_RDONLY | O_CLOEXEC);
    b->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (b->direct_fd < 0)
        b->direct_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (b->fd < 0 || b->direct_fd < 0)
        fail(path);
    (void)posix_fadvise(b->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* One word of each cache line, compared. */
static bool is_right(const struct bench *b, uint32_t expert)
{
    const char *at = b->window + expert * b->expert_bytes;
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < b->expert_bytes; i += 64)
        wrong |= *(const volatile uint64_t *)(at + i) ^ word_at(expert * b->expert_bytes + i);
    return wrong == 0;
}

static uint64_t cpu_now(void)
{
    return bench_now_ns(CLOCK_PROCESS_CPUTIME_ID);
}

struct times {
    uint64_t misses, hits, evictions, show_ns, first_ns, hit_ns, hide_ns, wall_ns;
};

/* Experts in the order in which they came; slot i holds held[i]. */
struct held {
    uint32_t *expert, next;
    int64_t *slot_of; /* -1: not there */
};

static void use(struct bench *b, const struct way *way, struct held *held, uint32_t expert,
                struct times *t)
{
    const bool hit = held->slot_of[expert] >= 0;
    const uint32_t slot = held->next;
    uint64_t start;

    if (!hit) {
        if (held->expert[slot] != UINT32_MAX) {
            start = cpu_now();
            way->hide(b, held->expert[slot], slot);
            t->hide_ns += cpu_now() - start;
            t->evictions++;
            held->slot_of[held->expert[slot]] = -1;
        }
        start = cpu_now();
        way->show(b, expert, slot);
        t->show_ns += cpu_now() - start;
        held->expert[slot] = expert;
        held->slot_of[expert] = slot;
        held->next = (slot + 1) % b->slots;
    }
    start = cpu_now();
    if (!is_right(b, expert)) {
        fprintf(stderr, "bench_windows: %s: wrong bytes\n", way->name);
        exit(1);
    }
    *(hit ? &t->hit_ns : &t->first_ns) += cpu_now() - start;
    *(hit ? &t->hits : &t->misses) += 1;
}

static void run_uses(struct bench *b, const struct way *way, struct held *held, struct times *t)
{
    uint64_t random = 1, start;

    held->expert = malloc(b->slots * sizeof(*held->expert));
    held->slot_of = malloc(b->experts * sizeof(*held->slot_of));
    if (held->expert == NULL || held->slot_of == NULL)
        fail("memory");
    memset(held->expert, 0xff, b->slots * sizeof(*held->expert));
    memset(held->slot_of, 0xff, b->experts * sizeof(*held->slot_of));
    for (uint64_t i = 0; i < uses; i++) {
        if (i == b->slots * 2) { /* from here on as it goes on for ever */
            memset(t, 0, sizeof(*t));
            b->read_ns = b->read_cpu_ns = 0;
            t->wall_ns = bench_now_ns(CLOCK_MONOTONIC);
        }
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        use(b, way, held, (uint32_t)((random >> 33) % b->experts), t);
    }
    start = t->wall_ns;
    t->wall_ns = bench_now_ns(CLOCK_MONOTONIC) - start;
}

/* ---- what breaks such ways */

static const char *child_result(pid_t child, char text[32])
{
    static const char *const results[] = { "right", "wrong bytes", "zeros", "EFAULT" };
    int status = 0;

    if (child < 0 || waitpid(child, &status, 0) != child)
        fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) < 4)
        return results[WEXITSTATUS(status)];
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return "hangs";
    snprintf(text, 32, "killed by signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return text;
}

static int judge(const struct bench *b, uint32_t expert)
{
    const uint64_t *first = (const uint64_t *)(const void *)(b->window + expert * b->expert_bytes);

    if (is_right(b, expert))
        return 0;
    return *(const volatile uint64_t *)first == 0 ? 2 : 1;
}

static uint32_t absent(const struct bench *b, const struct held *held, uint32_t nth)
{
    for (uint32_t e = 0; e < b->experts; e++) {
        if (held->slot_of[e] < 0 && nth-- == 0)
            return e;
    }
    errno = 0;
    fail("all experts have slots");
}

static const char *try_fork(struct bench *b, const struct way *way, struct held *held,
                            char text[32])
{
    const uint32_t leaving = held->expert[held->next];
    struct times ignored = { 0 };
    int go[2];
    pid_t child;
    char c;

    if (pipe(go) != 0 || (child = fork()) < 0)
        fail("fork");
    if (child == 0) {
        int result;

        alarm(HAZARD_S);
        if (way->in_child != NULL)
            way->in_child(b);
        if (read(go[0], &c, 1) != 1)
            _exit(1);
        result = judge(b, absent(b, held, 1));
        _exit(result != 0 ? result : judge(b, leaving));
    }
    use(b, way, held, absent(b, held, 0), &ignored);
    if (write(go[1], "x", 1) != 1)
        fail("write");
    return child_result(child, text);
}

/* In a process of its own, which opens the way itself: threads and userfaultfd are not inherited.
 */
static int hazard(struct bench *b, const struct way *way, bool closed)
{
    int fds[2];

    alarm(HAZARD_S);
    if (!way->open(b))
        return 1;
    if (closed) {
        way->show(b, 0, 0);
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        return judge(b, 1);
    }
    if (pipe(fds) != 0)
        return 1;
    if (write(fds[1], b->window + b->expert_bytes, 512) != 512)
        return errno == EFAULT ? 3 : 1;
    return 0;
}

static const char *try_alone(const struct bench *from, const struct way *way, bool closed,
                             char text[32])
{
    struct bench b = *from;
    pid_t child = fork();

    if (child == 0)
        _exit(hazard(&b, way, closed));
    return child_result(child, text);
}

/* ---- */

static double per_ms(uint64_t ns, uint64_t count)
{
    return count > 0 ? (double)ns * 1e-6 / (double)count : 0;
}

static void run_way(struct bench *b, const struct way *way)
{
    char texts[3][32];
    struct bench fresh = *b;
    struct times t = { 0 };
    struct held held = { 0 };

    printf("{\"way\": \"%s\", \"summary\": \"%s\"", way->name, way->summary);
    if (!way->open(b)) {
        printf(", \"refused\": true}");
        return;
    }
    run_uses(b, way, &held, &t);
    printf(", \"misses\": %" PRIu64 ", \"hits\": %" PRIu64 ", \"show_ms\": %.3f, \"first_ms\": %.3f"
           ", \"hit_ms\": %.3f, \"evict_ms\": %.3f, \"read_cpu_ms\": %.3f, \"read_ms\": %.3f"
           ", \"miss_cpu_ms\": %.3f, \"wall_s\": %.3f",
           t.misses, t.hits, per_ms(t.show_ns - b->read_cpu_ns, t.misses),
           per_ms(t.first_ns, t.misses), per_ms(t.hit_ns, t.hits), per_ms(t.hide_ns, t.evictions),
           per_ms(b->read_cpu_ns, t.misses), per_ms(b->read_ns, t.misses),
           per_ms(t.show_ns + t.hide_ns + t.first_ns, t.misses), (double)t.wall_ns * 1e-9);
    printf(", \"fork\": \"%s\"", try_fork(b, way, &held, texts[0]));
    printf(", \"syscall\": \"%s\", \"closed\": \"%s\"}", try_alone(&fresh, way, false, texts[1]),
           try_alone(&fresh, way, true, texts[2]));
}

static double scan_ms(const char *memory, uint64_t bytes)
{
    uint64_t best = UINT64_MAX, sum = 0;

    for (int n = 0; n < 5; n++) {
        const uint64_t start = cpu_now();

        for (uint64_t i = 0; i < bytes; i += 64)
            sum += *(const volatile uint64_t *)(memory + i);
        if (cpu_now() - start < best)
            best = cpu_now() - start;
    }
    return sum != 0 ? (double)best * 1e-6 : 0;
}

static void run_dense(const struct bench *b)
{
    const uint64_t all = b->experts * b->expert_bytes,
                   bytes = all < DENSE_BYTES ? all : DENSE_BYTES;
    char *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, b->fd, 0);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (file == MAP_FAILED || memory == MAP_FAILED)
        fail("mmap");
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    printf("\"dense\": {\"bytes\": %" PRIu64 ", \"page_cache_ms\": %.1f, \"anonymous_ms\": %.1f}",
           bytes, scan_ms(file, bytes), scan_ms(memory, bytes));
    munmap(memory, bytes);
    munmap(file, bytes);
}

int main(int argc, char **argv)
{
    struct bench b = { .fd = -1,
                       .direct_fd = -1,
                       .frames_fd = -1,
                       .uffd = -1,
                       .real = { .mmap = mmap, .munmap = munmap, .madvise = madvise } };
    char path[4096];

    if (argc < 2) {
        fprintf(stderr, "usage: bench_windows FOLDER [EXPERTS [EXPERT_MIB [SLOTS [USES]]]]\n");
        return 2;
    }
    *(void **)&b.real.mremap = (void *)mremap;
    b.experts = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 96;
    b.expert_bytes = (argc > 3 ? strtoull(argv[3], NULL, 10) : 9) << 20;
    b.slots = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 32;
    uses = argc > 5 ? strtoull(argv[5], NULL, 10) : uses;
    if (b.slots < 2 || b.experts < b.slots + 4 || b.expert_bytes == 0 || uses <= b.slots * 2) {
        fprintf(stderr, "bench_windows: 2 slots, 4 more experts, and uses for twice the slots\n");
        return 2;
    }
    snprintf(path, sizeof(path), "%s/bench_windows.%d", argv[1], (int)getpid());
    make_file(&b, path);
    open_file(&b, path);
    unlink(path);
    printf("{\"experts\": %" PRIu32 ", \"slots\": %" PRIu32 ", \"expert_bytes\": %" PRIu64
           ", \"ways\": [",
           b.experts, b.slots, b.expert_bytes);
    for (int i = 0; bench_ways[i] != NULL; i++) {
        pid_t child;

        printf("%s", i > 0 ? ",\n" : "\n");
        fflush(stdout);
        child = fork();
        if (child == 0) {
            run_way(&b, bench_ways[i]);
            fflush(stdout);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &(int){ 0 }, 0) != child)
            fail("fork");
    }
    printf("],\n");
    run_dense(&b);
    printf("}\n");
    return 0;
}
