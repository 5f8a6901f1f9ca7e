/*
 * Entries of the page table move with a slot's pages: made once, and never again.
 */
#include "interpose/mapping/moves.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/test.h"

#define PAGE 4096
#define PAGES 64

static struct mp_real real;
static uint32_t populated, refuse_from = UINT32_MAX, remaps;
static int refusal;        /* errno of a refusal */
static bool refuses_first; /* and nothing has changed then */
static char *window;
static int slots_fd, pagemap_fd;

static int count_madvise(void *at, size_t bytes, int advice)
{
    populated += advice == MADV_POPULATE_READ;
    return madvise(at, bytes, advice);
}

static void *refuse_mremap(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at)
{
    if (remaps++ < refuse_from)
        return mremap(at, bytes, new_bytes, flags, new_at);
    if (!refuses_first)
        (void)munmap(new_at, new_bytes);
    errno = refusal;
    return MAP_FAILED;
}

static void set_up(struct mp_moves *moves)
{
    memset(moves, 0, sizeof(*moves));
    populated = remaps = 0;
    refuse_from = UINT32_MAX;
    refusal = EINVAL;
    refuses_first = false;
    real = (struct mp_real){
        .mmap = mmap, .munmap = munmap, .mremap = refuse_mremap, .madvise = count_madvise
    };
    slots_fd = memfd_create("slots", MFD_CLOEXEC);
    CHECK(slots_fd >= 0 && ftruncate(slots_fd, PAGES * PAGE) == 0);
    for (uint32_t i = 0; i < PAGES; i++) {
        char page[PAGE];

        memset(page, (int)i, sizeof(page));
        CHECK_EQ(pwrite(slots_fd, page, PAGE, i * PAGE), PAGE);
    }
    window = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(window != MAP_FAILED);
    pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(pagemap_fd >= 0);
}

static void tear_down(struct mp_moves *moves)
{
    mp_moves_end(moves, &real);
    munmap(window, PAGES * PAGE);
    close(slots_fd);
    close(pagemap_fd);
}

/* How many pages from there on are in the page table? */
static uint32_t present(const char *at, uint32_t pages)
{
    uint64_t entries[PAGES];
    uint32_t count = 0;

    CHECK_EQ(pread(pagemap_fd, entries, pages * sizeof(entries[0]),
                   (off_t)((uintptr_t)at / PAGE * sizeof(entries[0]))),
             (long long)(pages * sizeof(entries[0])));
    for (uint32_t i = 0; i < pages; i++)
        count += entries[i] >> 63;
    return count;
}

static bool has_slot(const char *at, uint32_t slot_page, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++) {
        if (at[i * PAGE] != (char)(slot_page + i) || at[i * PAGE + PAGE - 1] != at[i * PAGE])
            return false;
    }
    return true;
}

static bool show(struct mp_moves *moves, uint32_t slot_page, uint32_t pages, char *at)
{
    return mp_moves_map(moves, &real, slots_fd, (uint64_t)slot_page * PAGE, (uint64_t)pages * PAGE,
                        at);
}

/* As the caller has to: something else is mapped there at once. */
static void hide(struct mp_moves *moves, uint32_t slot_page, uint32_t pages, char *at)
{
    mp_moves_unmap(moves, &real, (uint64_t)slot_page * PAGE, (uint64_t)pages * PAGE, at);
    CHECK(has_slot(at, slot_page, pages)); /* whoever reads meanwhile */
    CHECK(mmap(at, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void entries_are_made_once(void)
{
    struct mp_moves moves;

    set_up(&moves);
    CHECK(show(&moves, 8, 6, window));
    CHECK_EQ(populated, 1);
    CHECK_EQ(present(window, 6), 6);
    CHECK(has_slot(window, 8, 6));
    for (uint32_t i = 1; i < 8; i++) {
        hide(&moves, 8, 6, window + (i - 1) * 7 * PAGE);
        CHECK(show(&moves, 8, 6, window + i * 7 * PAGE));
        CHECK_EQ(present(window + i * 7 * PAGE, 6), 6);
        CHECK(has_slot(window + i * 7 * PAGE, 8, 6));
    }
    CHECK_EQ(populated, 1);
    errno = 0; /* it can be read, and no more */
    CHECK(pread(slots_fd, window + 49 * PAGE, 1, 0) < 0 && errno == EFAULT);
    CHECK(show(&moves, 20, 2, window)); /* another slot has none yet */
    CHECK_EQ(populated, 2);
    tear_down(&moves);
}

/* What somebody else has been mapped over is made again, and that alone needs it. */
static void forgotten_pages_are_made_again(void)
{
    struct mp_moves moves;

    set_up(&moves);
    CHECK(show(&moves, 0, 6, window));
    CHECK(show(&moves, 10, 6, window + 5 * PAGE)); /* a neighbour takes the last page */
    mp_moves_forget(&moves, 5 * PAGE, PAGE);
    hide(&moves, 0, 5, window);
    CHECK(has_slot(window + 5 * PAGE, 10, 6));
    CHECK_EQ(populated, 2);
    CHECK(show(&moves, 0, 5, window));
    CHECK_EQ(populated, 2);
    hide(&moves, 0, 5, window);
    CHECK(show(&moves, 0, 6, window + 20 * PAGE));
    CHECK_EQ(populated, 3);
    CHECK_EQ(present(window + 20 * PAGE, 6), 6);
    CHECK(has_slot(window + 20 * PAGE, 0, 6));
    tear_down(&moves);
}

/* A kernel that cannot is asked where nobody reads, and once. */
static void a_refusal_is_found_out_beside_the_window(void)
{
    struct mp_moves moves;

    set_up(&moves);
    refuse_from = 0;
    CHECK(!show(&moves, 0, 6, window));
    CHECK_EQ(present(window, PAGES), 0);
    CHECK(mprotect(window, PAGES * PAGE, PROT_READ) == 0); /* all of it is still mapped */
    CHECK(!show(&moves, 0, 6, window));
    CHECK_EQ(remaps, 1);
    tear_down(&moves);
}

/* One that could, and then cannot: nothing is moved any more, and what is mapped stays. The same
 * where it lacked mappings, and has taken away what was there. */
static void a_move_that_fails_is_the_last(int number)
{
    struct mp_moves moves;

    set_up(&moves);
    refusal = number;
    CHECK(show(&moves, 0, 6, window));
    CHECK(show(&moves, 10, 6, window + 10 * PAGE));
    CHECK(!show(&moves, PAGES - 2, 6, window)); /* there is no such slot */
    refuse_from = remaps;
    mp_moves_unmap(&moves, &real, 0, 6 * PAGE, window);
    refuse_from = UINT32_MAX;
    CHECK(has_slot(window, 0, 6) && has_slot(window + 10 * PAGE, 10, 6));
    remaps = 0;
    CHECK(!show(&moves, 0, 6, window + 30 * PAGE));
    mp_moves_unmap(&moves, &real, 10 * PAGE, 6 * PAGE, window + 10 * PAGE);
    CHECK(has_slot(window + 10 * PAGE, 10, 6));
    CHECK_EQ(remaps, 0);
    tear_down(&moves);
}

/* A kernel that lacks mappings says so before anything is changed, and may have some later. */
static void without_mappings_nothing_moves_for_a_while(void)
{
    struct mp_moves moves;

    set_up(&moves);
    refusal = ENOMEM;
    refuses_first = true;
    CHECK(show(&moves, 0, 6, window));
    CHECK(show(&moves, 10, 6, window + 10 * PAGE));
    refuse_from = remaps;
    CHECK(!show(&moves, 20, 6, window + 20 * PAGE));
    hide(&moves, 0, 6, window);
    refuse_from = UINT32_MAX;
    CHECK_EQ(populated, 2);
    hide(&moves, 10, 6, window + 10 * PAGE);
    CHECK(show(&moves, 10, 6, window + 30 * PAGE));
    CHECK(has_slot(window + 30 * PAGE, 10, 6));
    CHECK_EQ(populated, 2);
    CHECK(show(&moves, 0, 6, window)); /* its entries were lost with what was mapped over them */
    CHECK_EQ(populated, 3);
    CHECK_EQ(present(window, 6), 6);
    CHECK(show(&moves, 20, 6, window + 20 * PAGE));
    CHECK(has_slot(window, 0, 6) && has_slot(window + 20 * PAGE, 20, 6));
    tear_down(&moves);
}

/* Where addresses are limited they are the program's. */
static void limited_addresses_are_left_to_the_program(void)
{
    struct rlimit before, limit;
    struct mp_moves moves;

    set_up(&moves);
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)1 << 46;
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    CHECK(!show(&moves, 0, 6, window));
    CHECK_EQ(remaps, 0);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    tear_down(&moves);
}

int main(void)
{
    RUN(entries_are_made_once);
    RUN(forgotten_pages_are_made_again);
    RUN(a_refusal_is_found_out_beside_the_window);
    fprintf(stderr, "  a_move_that_fails_is_the_last\n");
    a_move_that_fails_is_the_last(EINVAL);
    a_move_that_fails_is_the_last(ENOMEM);
    RUN(without_mappings_nothing_moves_for_a_while);
    RUN(limited_addresses_are_left_to_the_program);
    return 0;
}
