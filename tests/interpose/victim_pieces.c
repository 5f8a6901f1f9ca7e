/*
 * A program that announces which experts of a model of many small ones it reads, so that there are
 * about as many mappings as a process may have:
 *
 *     victim_pieces FILE LAYERS EXPERTS BYTES before|after MAPPINGS...
 *
 * The file ends with the tensors of all layers, three of each, in which an expert has so many
 * bytes. One run for each of MAPPINGS: so many are left of those that the process may have, the
 * others become the program's, before or after the file is mapped; 0: it takes none. +N: it takes
 * so many at once, whatever is left. ~N: it takes all but 1,500 by calls that nobody can hook, as
 * its libc would, and N more a while later. Prints a line for each run, with what differs from the
 * file and the most mappings that there were.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/interpose/victim_checks.h"

enum { PAGE = 4096, KINDS = 3, ROUNDS = 2, LOOK_EVERY = 10, LEFT_UNSEEN = 1500 };

int moepager_preload_routed(const void *weights, uint64_t expert_stride_bytes, const int64_t *ids,
                            size_t count) __attribute__((weak));

static struct victim_mapping m;
static size_t layers, experts, expert_bytes, mappings_most, refused;
static _Atomic size_t stray_wrong;
static _Atomic int done;

static size_t offset_of(size_t layer, size_t kind, size_t expert)
{
    const size_t after = (layers * KINDS - layer * KINDS - kind) * experts - expert;

    return m.bytes - after * expert_bytes;
}

static size_t number_in(const char *path)
{
    size_t number = 0;
    FILE *file = fopen(path, "r");

    if (file == NULL || fscanf(file, "%zu", &number) != 1)
        victim_fail("cannot read", path);
    fclose(file);
    return number;
}

static size_t count_mappings(void)
{
    static char lines[1 << 16];
    FILE *file = fopen("/proc/self/maps", "r");
    size_t count = 0, bytes;

    if (file == NULL)
        victim_fail("cannot read", "/proc/self/maps");
    setvbuf(file, NULL, _IONBF, 0);
    while ((bytes = fread(lines, 1, sizeof(lines), file)) > 0) {
        for (const char *at = lines; (at = memchr(at, '\n', (size_t)(lines + bytes - at))) != NULL;
             at++)
            count++;
    }
    fclose(file);
    return count;
}

enum { HOOKED, UNSEEN };

/* Pages of alternating protection: each is a mapping of its own. */
static void cut_pages(char *from, size_t bytes, int how)
{
    for (size_t at = PAGE; at < bytes; at += 2 * (size_t)PAGE) {
        if ((how == HOOKED ? mprotect(from + at, PAGE, PROT_READ)
                           : (int)syscall(SYS_mprotect, from + at, PAGE, PROT_READ)) != 0)
            victim_fail("no mappings beside", m.path);
    }
}

static char *take_mappings(const char *what, size_t *bytes_p)
{
    const size_t limit = number_in("/proc/sys/vm/max_map_count"), now = count_mappings();
    const size_t number = strtoul(what + (*what == '+' || *what == '~'), NULL, 10);
    const size_t left = *what == '~' ? LEFT_UNSEEN : number;
    size_t wanted = left > 0 && limit > now + left ? limit - now - left : 0;
    const size_t later = *what == '~' ? number : 0;
    char *region;

    if (*what == '+')
        wanted = number;
    wanted -= wanted % 2;
    *bytes_p = (wanted + later) * PAGE;
    if (wanted == 0)
        return NULL;
    region = mmap(NULL, *bytes_p, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        victim_fail("no addresses beside", m.path);
    cut_pages(region, wanted * PAGE, *what == '~' ? UNSEEN : HOOKED);
    if (later > 0) {
        usleep(1500000);
        cut_pages(region + wanted * PAGE, later * PAGE, UNSEEN);
    }
    return region;
}

static size_t is_wrong(size_t offset)
{
    unsigned char file[1 << 16];

    if (expert_bytes > sizeof(file) ||
        pread(m.fd, file, expert_bytes, (off_t)offset) != (ssize_t)expert_bytes)
        victim_fail("cannot read", m.path);
    return memcmp(m.base + offset, file, expert_bytes) != 0;
}

/* Reads what it has not announced, wherever something may just be mapped. */
static void *stray(void *arg)
{
    uint64_t state = 1;

    (void)arg;
    while (!atomic_load(&done)) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        atomic_fetch_add(&stray_wrong, is_wrong(offset_of((state >> 20) % layers, 0, 0) +
                                                (state >> 32) % (experts * expert_bytes)));
        usleep(200);
    }
    return NULL;
}

/* Of neighbours only one at a time, and in the end all. */
static size_t choose(size_t round, int64_t *ids)
{
    size_t count = 0;

    for (size_t e = round; e < experts; e += ROUNDS)
        ids[count++] = (int64_t)e;
    return count;
}

static size_t run_layer(size_t layer, size_t round)
{
    int64_t ids[1024];
    const size_t count = choose(round, ids);
    size_t wrong = 0;

    if (moepager_preload_routed != NULL)
        refused +=
            moepager_preload_routed(m.base + offset_of(layer, 0, 0), expert_bytes, ids, count) != 0;
    for (size_t k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < count; i++)
            wrong += is_wrong(offset_of(layer, k, (size_t)ids[i]));
    }
    return wrong;
}

static size_t run(void)
{
    size_t wrong = 0;
    pthread_t thread;

    atomic_store(&done, 0);
    if (pthread_create(&thread, NULL, stray, NULL) != 0)
        victim_fail("no thread for", m.path);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t l = 0; l < layers; l++) {
            wrong += run_layer(l, round);
            if (l % LOOK_EVERY == 0) {
                const size_t now = count_mappings();

                mappings_most = now > mappings_most ? now : mappings_most;
            }
        }
    }
    atomic_store(&done, 1);
    pthread_join(thread, NULL);
    return wrong + atomic_exchange(&stray_wrong, 0);
}

static void run_with(const char *left)
{
    size_t bytes, wrong;
    char *region = take_mappings(left, &bytes);

    mappings_most = refused = 0;
    if (m.base == NULL)
        victim_map(m.path, &m);
    wrong = run();
    printf("%s left: wrong %zu, not paged %zu, mappings %zu of %zu\n", left, wrong, refused,
           mappings_most, number_in("/proc/sys/vm/max_map_count"));
    fflush(stdout);
    if (region != NULL)
        munmap(region, bytes);
}

int main(int argc, char **argv)
{
    if (argc < 7)
        victim_fail("usage: victim_pieces FILE LAYERS EXPERTS BYTES before|after MAPPINGS..., got",
                    argv[argc - 1]);
    m.path = argv[1];
    layers = strtoul(argv[2], NULL, 10);
    experts = strtoul(argv[3], NULL, 10);
    expert_bytes = strtoul(argv[4], NULL, 10);
    if (strcmp(argv[5], "after") == 0)
        victim_map(m.path, &m);
    for (int i = 6; i < argc; i++)
        run_with(argv[i]);
    printf("bytes wrong %zu\n", victim_wrong_pages(&m));
    munmap((void *)(uintptr_t)m.base, m.bytes);
    return fflush(stdout) != 0;
}
