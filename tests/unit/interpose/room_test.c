/*
 * The program takes all mappings that the kernel has for it (vm.max_map_count): it gets ours, and
 * the experts are read through the file's mapping.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/entry/entry_int.h"
#include "interpose/mapping/mappings_int.h"
#include "tests/support/test.h"
#include "tests/unit/interpose/made_up.h"
#include "vmm/topo/memory_room.h"

#define PAGE 4096

/* Mappings that the program has: pages of alternating protection. */
static char *region;
static uint64_t region_pages, taken;

/* Until the kernel refuses. Returns how many it took now. */
static uint64_t take_all(void)
{
    const uint64_t before = taken;

    while (2 * taken + 1 < region_pages &&
           mprotect(region + (2 * taken + 1) * PAGE, PAGE, PROT_READ) == 0)
        taken++;
    CHECK(2 * taken + 1 < region_pages);
    CHECK_EQ(errno, ENOMEM);
    return 2 * (taken - before);
}

static void reserve_region(void)
{
    uint64_t maps, maps_max;

    CHECK(mp_memory_maps_read("", &maps, &maps_max));
    region_pages = maps_max + 16;
    region = mmap(NULL, region_pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
    CHECK(region != MAP_FAILED);
}

static struct mp_mappings_counts counts(void)
{
    struct mp_paged *paged = mp_entry_begin(0);
    struct mp_mappings_counts counts;

    CHECK(paged != NULL);
    mp_mappings_get_counts(paged->mappings, &counts);
    mp_entry_end(paged);
    return counts;
}

/* Do entries of the page table move? */
static bool moves(void)
{
    struct mp_paged *paged = mp_entry_begin(0);
    bool moving;

    CHECK(paged != NULL);
    mp_lock(&paged->mappings->lock);
    moving = paged->mappings->moves.base != NULL;
    mp_unlock(&paged->mappings->lock);
    mp_entry_end(paged);
    return moving;
}

static void run_tokens(const char *base, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            const int32_t ids[MADE_TOP_K] = { (int32_t)(t % MADE_EXPERTS),
                                              (int32_t)((t + l + 1) % MADE_EXPERTS) };

            if (ids[0] != ids[1])
                made_run_layer(base, l, ids, 1);
        }
    }
}

/* There are mappings enough, and the kernel has refused for want of something else. */
static void other_refusals_are_none_of_ours(const char *base)
{
    uint32_t mapped;

    run_tokens(base, 20);
    mapped = counts().mapped;
    CHECK(mapped > 3);
    CHECK(!mp_interposer_table.refused());
    CHECK_EQ(counts().mapped, mapped);
}

static void the_program_gets_our_mappings(const char *base)
{
    const uint32_t mapped = counts().mapped;

    CHECK(take_all() > 1000);
    CHECK(mp_interposer_table.refused());
    CHECK_EQ(counts().mapped, 0);
    CHECK(take_all() >= mapped);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    /* In the end also those that are kept back; then there is nothing to give. */
    CHECK(mp_interposer_table.refused());
    CHECK(take_all() >= 100);
    CHECK(!mp_interposer_table.refused());
    CHECK_EQ(counts().mapped, 0);
    run_tokens(base, 10);
    CHECK(made_is_equal(base, 0, made_file_bytes));
}

/* What the program gives back is used again, when the kernel is asked next. */
static void they_come_back(const char *base, bool moved)
{
    CHECK_EQ(moves(), moved);
    CHECK_EQ(munmap(region, region_pages * PAGE), 0);
    run_tokens(base, 100);
    CHECK(counts().mapped > 3);
    CHECK(made_is_equal(base, 0, made_file_bytes));
}

int main(void)
{
    const int fd = open(made_path(), O_RDONLY);
    char *base;
    bool moved;

    CHECK(fd >= 0);
    made_start("300K", "expert");
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    CHECK(made_is_paged(base));
    reserve_region();
    other_refusals_are_none_of_ours(base);
    moved = moves();
    the_program_gets_our_mappings(base);
    they_come_back(base, moved);
    made_unmap(base, made_file_bytes);
    CHECK(!mp_interposer_table.refused());
    close(fd);
    return 0;
}
