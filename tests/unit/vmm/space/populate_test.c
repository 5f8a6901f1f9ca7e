/* Pages are there without anybody touching them, and keep what is written meanwhile. */
#include "vmm/space/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"

#define FRAMES 3
#define FRAME_BYTES ((size_t)5 << 20) /* no multiple of a step */
#define PAGE 4096

static struct mp_frame frames[FRAMES];

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

static size_t pages_there(void)
{
    static unsigned char there[FRAME_BYTES / PAGE];
    size_t count = 0;

    for (int i = 0; i < FRAMES; i++) {
        CHECK_EQ(mincore(frames[i].alias, FRAME_BYTES, there), 0);
        for (size_t p = 0; p < FRAME_BYTES / PAGE; p++)
            count += there[p] & 1;
    }
    return count;
}

static void all_pages_come_and_keep_what_was_written(void)
{
    struct mp_populate *populate;

    make_frames();
    CHECK_EQ(pages_there(), 0);
    populate = mp_populate_start(frames, FRAMES);
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
    populate = mp_populate_start(frames, FRAMES);
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
        CHECK(mp_populate_start(frames, FRAMES) == NULL);
        CHECK(fault_end() > 0);
    }
    plan.calls = FAULT_BIT(madvise); /* an old kernel */
    fault_begin(&plan);
    populate = mp_populate_start(frames, FRAMES);
    CHECK(populate != NULL);
    usleep(20000);
    mp_populate_stop(populate);
    fault_end();
    CHECK_EQ(pages_there(), 0);
    free_frames();
}

int main(void)
{
    RUN(all_pages_come_and_keep_what_was_written);
    RUN(what_cannot_start_or_go_on_is_done_without);
    return 0;
}
