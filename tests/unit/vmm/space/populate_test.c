/* Pages are there without anybody touching them, huge where asked for, and keep what is written
 * meanwhile. */
#include "vmm/space/populate.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"

#define FRAMES 3
#define FRAME_BYTES ((size_t)5 << 20) /* no multiple of a step */
#define PAGE 4096
#define HUGE ((size_t)2 << 20)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct mp_frame frames[FRAMES];

/* Huge pages take no time, or long. */
static uint64_t stand_still(struct mp_clock *clock)
{
    (void)clock;
    return 0;
}

static uint64_t go_on(struct mp_clock *clock)
{
    static _Atomic(uint64_t) looks;

    (void)clock;
    return atomic_fetch_add(&looks, 1) * 4000000;
}

static struct mp_clock still = { stand_still }, slow = { go_on };

static void make_frames(void)
{
    for (int i = 0; i < FRAMES; i++) {
        frames[i] = (struct mp_frame){ .handle = 1, .bytes = FRAME_BYTES };
        frames[i].alias =
            mmap(NULL, FRAME_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(frames[i].alias != MAP_FAILED);
    }
}

static void free_frames(void)
{
    for (int i = 0; i < FRAMES; i++)
        CHECK_EQ(munmap(frames[i].alias, FRAME_BYTES), 0);
}

static size_t pages_of(void *at, size_t bytes)
{
    static unsigned char there[FRAME_BYTES / PAGE];
    size_t count = 0;

    CHECK_EQ(mincore(at, bytes, there), 0);
    for (size_t p = 0; p < bytes / PAGE; p++)
        count += there[p] & 1;
    return count;
}

static size_t pages_there(void)
{
    size_t count = 0;

    for (int i = 0; i < FRAMES; i++)
        count += pages_of(frames[i].alias, FRAME_BYTES);
    return count;
}

static void all_pages_come_and_keep_what_was_written(void)
{
    struct mp_populate *populate;

    make_frames();
    CHECK_EQ(pages_there(), 0);
    populate = mp_populate_start(frames, FRAMES, false, &still);
    CHECK(populate != NULL);
    for (int i = 0; i < FRAMES; i++) {
        for (size_t at = 0; at < FRAME_BYTES; at += PAGE)
            ((unsigned char *)frames[i].alias)[at + 7] = (unsigned char)(at / PAGE + 1);
    }
    mp_populate_stop(populate);
    for (int i = 0; i < FRAMES; i++) {
        for (size_t at = 0; at < FRAME_BYTES; at += PAGE) {
            CHECK_EQ(((unsigned char *)frames[i].alias)[at + 7], (unsigned char)(at / PAGE + 1));
            CHECK_EQ(((unsigned char *)frames[i].alias)[at], 0);
        }
    }
    free_frames();

    make_frames();
    populate = mp_populate_start(frames, FRAMES, false, &still);
    while (pages_there() < FRAMES * (FRAME_BYTES / PAGE)) /* it gives way to whoever computes */
        usleep(1000);
    mp_populate_stop(populate);
    free_frames();
    mp_populate_stop(NULL);
}

static void what_cannot_start_or_go_on_is_done_without(void)
{
    static const uint64_t calls[] = { FAULT_BIT(malloc), FAULT_BIT(pthread_create) };
    struct fault_plan plan = { .mode = FAULT_ALWAYS };
    struct mp_populate *populate;

    make_frames();
    for (size_t i = 0; i < 2; i++) {
        plan.calls = calls[i];
        fault_begin(&plan);
        CHECK(mp_populate_start(frames, FRAMES, false, &still) == NULL);
        CHECK(fault_end() > 0);
    }
    plan.calls = FAULT_BIT(madvise); /* an old kernel */
    fault_begin(&plan);
    populate = mp_populate_start(frames, FRAMES, false, &still);
    CHECK(populate != NULL);
    usleep(20000);
    mp_populate_stop(populate);
    fault_end();
    CHECK_EQ(pages_there(), 0);
    free_frames();
}

/* Of the mapping at `base`, as the kernel counts it. */
static size_t huge_bytes(const char *base)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    size_t kib = 0, found = 0;
    unsigned long begin = 0;
    char line[512];

    CHECK(smaps != NULL);
    while (fgets(line, sizeof(line), smaps) != NULL) {
        unsigned long at, end;

        if (sscanf(line, "%lx-%lx ", &at, &end) == 2)
            begin = at;
        else if (begin == (uintptr_t)base && sscanf(line, "ShmemPmdMapped: %zu kB", &kib) == 1)
            found = kib << 10;
    }
    fclose(smaps);
    return found;
}

/* Six, of which some have parts of two frames, one is in use before it comes, and single pages
 * before and behind them. */
static void a_files_pages_become_huge(void)
{
    const size_t bytes = FRAMES * FRAME_BYTES;
    const int fd = memfd_create("populate", MFD_CLOEXEC);
    struct mp_populate *populate;
    char *reserved, *base;
    size_t huge;

    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, (off_t)(bytes + PAGE)), 0);
    reserved = mmap(NULL, bytes + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(reserved != MAP_FAILED);
    base = reserved + (HUGE - (uintptr_t)reserved % HUGE) % HUGE;
    CHECK(mmap(base, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base);
    for (size_t i = 0; i < FRAMES; i++)
        frames[i] = (struct mp_frame){ .handle = 1,
                                       .bytes = FRAME_BYTES,
                                       .alias = base + PAGE + i * FRAME_BYTES };
    base[PAGE] = 3;
    base[bytes] = 4;
    base[3 * HUGE + 5] = 5;
    base[3 * HUGE + HUGE / 2] = 6;

    populate = mp_populate_start(frames, FRAMES, true, &still);
    CHECK(populate != NULL);
    while (pages_there() < FRAMES * (FRAME_BYTES / PAGE))
        usleep(1000);
    mp_populate_stop(populate);
    huge = huge_bytes(base);
    if (madvise(base + HUGE, HUGE, MADV_COLLAPSE) != 0)
        printf("this kernel makes no huge pages of a file's: %s\n", strerror(errno));
    else
        CHECK_EQ(huge, (bytes / HUGE - 1) * HUGE);
    CHECK_EQ(base[PAGE], 3);
    CHECK_EQ(base[bytes], 4);
    CHECK_EQ(base[3 * HUGE + 5], 5);
    CHECK_EQ(base[3 * HUGE + HUGE / 2], 6);
    CHECK_EQ(base[bytes / 2], 0);
    CHECK_EQ(munmap(reserved, bytes + 2 * HUGE), 0);
    close(fd);
}

/* Slots of 9 MiB, which are four huge pages and a half, as a tier lays them out: two behind all the
 * others, in a frame of their own. */
static struct {
    char *reserved, *base;
    size_t bytes;
    int fd;
} slots;

static struct mp_populate *populate_slots(size_t count, struct mp_clock *clock)
{
    const size_t slot = (size_t)9 << 20;
    struct mp_populate *populate;

    slots.bytes = count * slot;
    slots.fd = memfd_create("populate", MFD_CLOEXEC);
    CHECK(slots.fd >= 0);
    CHECK_EQ(ftruncate(slots.fd, (off_t)slots.bytes), 0);
    slots.reserved = mmap(NULL, slots.bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(slots.reserved != MAP_FAILED);
    slots.base = slots.reserved + (HUGE - (uintptr_t)slots.reserved % HUGE) % HUGE;
    CHECK(mmap(slots.base, slots.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, slots.fd,
               0) == slots.base);
    frames[0] = (struct mp_frame){ .handle = 1, .bytes = (count - 2) * slot, .alias = slots.base };
    frames[1] = (struct mp_frame){ .handle = 1,
                                   .bytes = 2 * slot,
                                   .alias = slots.base + (count - 2) * slot };
    populate = mp_populate_start(frames, 2, true, clock);
    CHECK(populate != NULL);
    return populate;
}

static void wait_for_slots(void)
{
    const size_t step = (size_t)1 << 20;
    size_t there;

    do {
        usleep(1000);
        there = 0;
        for (size_t at = 0; at < slots.bytes; at += step)
            there += pages_of(slots.base + at, step);
    } while (there < slots.bytes / PAGE);
}

/* Can they be? Else nothing here is tested. */
static bool can_be_huge(void)
{
    if (madvise(slots.base, HUGE, MADV_COLLAPSE) == 0)
        return true;
    printf("this kernel makes no huge pages of a file's: %s\n", strerror(errno));
    return false;
}

static void free_slots(void)
{
    CHECK_EQ(munmap(slots.reserved, slots.bytes + HUGE), 0);
    close(slots.fd);
}

/* Huge pages have parts of two slots, and of two frames, so that single pages are left behind the
 * last slot alone. Enough memory for two threads. */
static void slots_of_an_odd_size_are_huge_too(void)
{
    struct mp_populate *populate = populate_slots(9, &still);

    wait_for_slots();
    mp_populate_stop(populate);
    if (can_be_huge())
        CHECK_EQ(huge_bytes(slots.base), slots.bytes / HUGE * HUGE);
    free_slots();
}

/* Eight huge pages have shown that they take long: the other five are made of single ones. */
static void single_pages_come_first_where_huge_ones_are_slow(void)
{
    struct mp_populate *populate = populate_slots(3, &slow);
    size_t first;

    wait_for_slots();
    first = huge_bytes(slots.base);
    if (can_be_huge()) {
        CHECK_EQ(first, 8 * HUGE);
        while (huge_bytes(slots.base) < slots.bytes / HUGE * HUGE)
            usleep(1000);
    }
    mp_populate_stop(populate);
    free_slots();
}

/* The second call is the one that would make a huge page. */
static void pages_that_cannot_be_huge_come_one_by_one(void)
{
    static const int errors[] = { EINVAL, EAGAIN };
    const size_t bytes = 2 * HUGE;
    char *reserved =
        mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *base = reserved + (HUGE - (uintptr_t)reserved % HUGE) % HUGE;
    const struct mp_frame these[] = { { .handle = 0 },
                                      { .handle = 1, .bytes = bytes, .alias = base } };

    CHECK(reserved != MAP_FAILED);
    CHECK_EQ(madvise(base, bytes, MADV_NOHUGEPAGE), 0);
    for (size_t i = 0; i < 2; i++) {
        const struct fault_plan plan = {
            .mode = FAULT_ONCE, .calls = FAULT_BIT(madvise), .skip = 1, .error_number = errors[i]
        };
        struct mp_populate *populate;

        CHECK_EQ(madvise(base, bytes, MADV_DONTNEED), 0);
        CHECK_EQ(pages_of(base, bytes), 0);
        fault_begin(&plan);
        populate = mp_populate_start(these, 2, true, &still);
        while (pages_of(base, bytes) < bytes / PAGE)
            usleep(1000);
        mp_populate_stop(populate);
        CHECK_EQ(fault_end(), 1);
    }
    CHECK_EQ(munmap(reserved, bytes + HUGE), 0);
}

int main(void)
{
    RUN(all_pages_come_and_keep_what_was_written);
    RUN(what_cannot_start_or_go_on_is_done_without);
    RUN(a_files_pages_become_huge);
    RUN(slots_of_an_odd_size_are_huge_too);
    RUN(single_pages_come_first_where_huge_ones_are_slow);
    RUN(pages_that_cannot_be_huge_come_one_by_one);
    return 0;
}
