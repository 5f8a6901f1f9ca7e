/*
 * Copies of experts that a program makes to a device itself: which experts a copy names, from where
 * it is made, when slots are pinned, and who waits before a layer closes.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/entry/entry_int.h"
#include "interpose/pager/ggml.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/unit/interpose/made_up.h"

#define TYPE_I32 26
#define CALLS_MAX 16
#define PAGE 4096u

static char backends[2]; /* only their addresses are looked at */
static char *base;

/* What the program was asked to do. */
static struct {
    const char *from;
    size_t at, bytes;
} calls[CALLS_MAX];
static unsigned call_count, synchronized[2], pins, unpins;
static uint64_t pinned_bytes;
static bool pin_fails;

static int pin(void *address, size_t bytes, unsigned flags)
{
    CHECK(address != NULL);
    CHECK_EQ(flags, 1);
    pins++;
    if (pin_fails)
        return 2;
    pinned_bytes += bytes;
    return 0;
}

static int unpin(void *address)
{
    CHECK(address != NULL);
    unpins++;
    return 0;
}

static void synchronize(void *backend)
{
    synchronized[(char *)backend - backends]++;
    mp_interposer_table.synchronized(backend, false);
}

static void *find_more(const void *site, const char *name)
{
    (void)site;
    return strcmp(name, "cudaHostRegister") == 0           ? (void *)pin
           : strcmp(name, "cudaHostUnregister") == 0       ? (void *)unpin
           : strcmp(name, "ggml_backend_synchronize") == 0 ? (void *)synchronize
                                                           : NULL;
}

static void make(void *ctx, const void *from, size_t at, size_t bytes)
{
    const char *data = ctx;

    CHECK(call_count < CALLS_MAX);
    calls[call_count].from = from;
    calls[call_count].at = at;
    calls[call_count++].bytes = bytes;
    CHECK(memcmp(from, data + at, bytes) == 0);
}

/* The program copies so many bytes from here. */
static void copy(uint64_t offset, size_t bytes, unsigned backend)
{
    const struct mp_copy_call wanted = { .backend = &backends[backend],
                                         .data = base + offset,
                                         .bytes = bytes,
                                         .make = make,
                                         .ctx = base + offset };

    call_count = 0;
    CHECK(mp_interposer_table.copy(NULL, &wanted));
}

static void copy_expert(uint32_t layer, uint32_t kind, uint32_t expert)
{
    copy(made_offset(layer, kind, expert), MADE_EXPERT_BYTES, 0);
}

/* Call i was made from a slot, not from the mapping. */
static bool is_alias(unsigned i)
{
    return calls[i].from < base || calls[i].from >= base + made_file_bytes;
}

static void read_ids(const int32_t *ids, int64_t k, int64_t tokens)
{
    const struct mp_ggml_tensor tensor = { .type = TYPE_I32,
                                           .ne = { k, tokens, 1, 1 },
                                           .nb = { 4, 4 * (size_t)k } };

    mp_interposer_table.ids_read(NULL, &tensor, ids, (size_t)(4 * k * tokens));
}

struct seen {
    uint64_t opened, copies;
    uint32_t layer, needs, tokens;
    uint32_t first, first_tokens; /* of the needs */
};

static struct seen look(void)
{
    struct mp_paged *paged = mp_entry_begin(0);
    struct seen seen;

    CHECK(paged != NULL);
    seen = (struct seen){ paged->layers_opened,  paged->uploads.copies, paged->layer,
                          paged->need_count,     paged->tokens,         paged->needs[0].expert,
                          paged->needs[0].tokens };
    mp_entry_end(paged);
    return seen;
}

static void open_model(void)
{
    const int fd = open(made_path(), O_RDONLY);

    CHECK(fd >= 0);
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    close(fd);
    CHECK(made_is_paged(base));
    memset(synchronized, 0, sizeof(synchronized));
    pins = unpins = 0;
    pinned_bytes = 0;
}

static void close_model(void)
{
    made_unmap(base, made_file_bytes);
    CHECK_EQ(unpins, pinned_bytes > 0 ? pins : 0);
}

/* The ids that a thread has read are those of the copies that follow, if they name what is copied;
 * else a copy speaks for itself. */
static void ids_open_a_layer_for_all_that_they_name(void)
{
    struct seen seen;

    open_model();
    read_ids((const int32_t[]){ 6, 7, 0, 4 }, 2, 2);
    read_ids((const int32_t[]){ 1, 5 }, 2, 1);
    copy_expert(0, 0, 5);
    seen = look();
    CHECK_EQ(seen.opened, 1);
    CHECK_EQ(seen.needs, 2);
    CHECK_EQ(seen.first, 1);
    CHECK_EQ(seen.tokens, 1);
    CHECK_EQ(call_count, 1);
    CHECK(is_alias(0));
    CHECK_EQ(calls[0].bytes, MADE_EXPERT_BYTES);
    for (uint32_t kind = 0; kind < MADE_KINDS; kind++)
        copy_expert(0, kind, 1);
    CHECK_EQ(look().opened, 1);
    read_ids((const int32_t[]){ 2, 3, 2, 2 }, 2, 2);
    read_ids((const int32_t[]){ 1, 5 }, 2, 1); /* the same, whatever was behind them */
    copy_expert(0, 0, 5);
    CHECK_EQ(look().opened, 1);
    CHECK_EQ(look().copies, 5);
    CHECK_EQ(synchronized[0], 0);

    copy_expert(0, 0, 3); /* which they do not name */
    seen = look();
    CHECK_EQ(seen.opened, 2);
    CHECK_EQ(seen.needs, 1);
    CHECK_EQ(seen.first, 3);
    CHECK_EQ(seen.first_tokens, 1);
    CHECK_EQ(synchronized[0], 1); /* what was under way from the layer that closes */
    copy_expert(1, 0, 1);
    CHECK_EQ(look().layer, 1);
    CHECK_EQ(look().needs, 2);
    CHECK_EQ(synchronized[0], 2);
    close_model();
    CHECK_EQ(synchronized[0], 3);
}

static void what_is_no_list_of_ids_is_ignored(void)
{
    static const int32_t other[] = { 3, 4, 0, 0 };
    const struct mp_ggml_tensor right = { .type = TYPE_I32, .ne = { 2, 1, 1, 1 }, .nb = { 4, 8 } };
    struct mp_ggml_tensor wrong[7];

    open_model();
    read_ids((const int32_t[]){ 1, 5 }, 2, 1);
    for (size_t i = 0; i < MP_ARRAY_LEN(wrong); i++)
        wrong[i] = right;
    wrong[0].type = 0;
    wrong[1].ne[0] = 0;
    wrong[2].ne[1] = 0;
    wrong[3].ne[2] = 2;
    wrong[4].ne[3] = 2;
    wrong[5].nb[0] = 8;
    wrong[6].ne[0] = 65537;
    for (size_t i = 0; i < MP_ARRAY_LEN(wrong); i++)
        mp_interposer_table.ids_read(NULL, &wrong[i], other, SIZE_MAX);
    mp_interposer_table.ids_read(NULL, &right, other, 7); /* a byte is missing */
    copy_expert(0, 0, 1);
    CHECK_EQ(look().needs, 2);
    CHECK_EQ(look().first, 1);
    mp_interposer_table.ids_read(NULL, &right, other, 8);
    copy_expert(1, 0, 4);
    CHECK_EQ(look().first, 3);
    close_model();
}

/* Choices are kept for policies while they are few, and no more than a token has. */
static void long_lists_are_counted_only(void)
{
    static const struct {
        uint32_t k, tokens, kept;
    } cases[] = { { 2, 64, 64 }, { 2, 65, 0 }, { 3, 1, 0 }, { 1, 7, 7 } };

    open_model();
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        int32_t ids[2 * 65];

        for (uint32_t n = 0; n < cases[i].k * cases[i].tokens; n++)
            ids[n] = (int32_t)(n % cases[i].k + i);
        read_ids(ids, cases[i].k, cases[i].tokens);
        copy_expert(2, 0, (uint32_t)i);
        CHECK_EQ(look().needs, cases[i].k);
        CHECK_EQ(look().first_tokens, cases[i].tokens);
        CHECK_EQ(look().tokens, cases[i].kept);
    }
    close_model();
}

/* A run of neighbours is copied one by one; its tail, for kernels that read whole blocks, belongs
 * to the last. */
static void neighbours_are_copied_one_by_one(void)
{
    static const struct {
        uint32_t begin; /* in expert 2 */
        uint64_t bytes;
        uint32_t count, last_bytes;
    } cases[] = {
        { 0, 3 * MADE_EXPERT_BYTES, 3, MADE_EXPERT_BYTES },
        { 0, 3 * MADE_EXPERT_BYTES + 4096, 3, MADE_EXPERT_BYTES + 4096 },
        { 0, 3 * MADE_EXPERT_BYTES + 4097, 4, 4097 },
        { 100, MADE_EXPERT_BYTES, 1, MADE_EXPERT_BYTES },
        { 100, 2 * MADE_EXPERT_BYTES - 100, 2, MADE_EXPERT_BYTES },
        { 100, 5000, 1, 5000 },
        { MADE_EXPERT_BYTES - 1, 1, 1, 1 },
    };

    open_model();
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        uint64_t at = 0;

        copy(made_offset(1, 1, 2) + cases[i].begin, cases[i].bytes, 0);
        CHECK_EQ(call_count, cases[i].count);
        CHECK_EQ(look().needs, cases[i].count);
        CHECK_EQ(look().first, 2);
        for (uint32_t c = 0; c < call_count; c++) {
            CHECK_EQ(calls[c].at, at);
            at += calls[c].bytes;
        }
        CHECK_EQ(at, cases[i].bytes);
        CHECK_EQ(calls[call_count - 1].bytes, cases[i].last_bytes);
    }
    close_model();
}

/* All experts at once, nothing, and what is no expert's are copied as they are. */
static void other_copies_are_the_programs(void)
{
    open_model();
    copy(made_offset(0, 0, 0), MADE_EXPERTS * MADE_EXPERT_BYTES, 0);
    CHECK_EQ(call_count, 1);
    CHECK(!is_alias(0));
    copy(made_offset(0, 0, 0) - 64, 32, 0);
    CHECK_EQ(call_count, 1);
    copy(made_offset(0, 0, 1), 0, 0);
    CHECK_EQ(call_count, 1);
    CHECK_EQ(look().opened, 0);
    CHECK_EQ(look().copies, 0);
    copy(made_offset(0, 0, 0), (MADE_EXPERTS - 1) * MADE_EXPERT_BYTES, 0);
    CHECK_EQ(call_count, MADE_EXPERTS - 1);
    CHECK_EQ(look().opened, 1);
    close_model();
}

/* A slot has the expert's last page whole, and nothing behind it. */
static void a_tail_ends_with_its_page(void)
{
    const uint64_t offset = made_offset(0, 0, 2);
    const uint64_t room = PAGE - (offset + MADE_EXPERT_BYTES) % PAGE;

    open_model();
    copy(offset, MADE_EXPERT_BYTES + room, 0);
    CHECK(call_count == 1 && is_alias(0));
    copy(offset, MADE_EXPERT_BYTES + room + 1, 0);
    CHECK(call_count == 1 && !is_alias(0));
    close_model();
}

static bool has_place(const char *at, uint64_t offset)
{
    struct mp_paged *paged = mp_entry_begin(0);
    uint64_t found = 0;
    uint32_t file = 9;
    bool has;

    CHECK(paged != NULL);
    has = mp_mappings_locate(paged->mappings, at, &file, &found);
    mp_entry_end(paged);
    CHECK(!has || (file == 0 && found == offset));
    return has;
}

/* A mapping has its first byte and its last, and none that the program took out. */
static void a_mapping_ends_with_its_last_byte(void)
{
    const uint64_t hole = made_offset(1, 0, 0) / PAGE * PAGE;

    open_model();
    CHECK(!has_place(base - 1, 0));
    CHECK(has_place(base, 0));
    CHECK(has_place(base + made_file_bytes - 1, made_file_bytes - 1));
    CHECK(!has_place(base + (made_file_bytes + PAGE - 1) / PAGE * PAGE, 0));
    made_unmap(base + hole, 2 * PAGE);
    CHECK(has_place(base + hole - 1, hole - 1));
    CHECK(!has_place(base + hole, 0));
    CHECK(!has_place(base + hole + 2 * PAGE - 1, 0));
    CHECK(has_place(base + hole + 2 * PAGE, hole + 2 * PAGE));
    made_unmap(base + hole + 2 * PAGE, made_file_bytes - hole - 2 * PAGE);
    made_unmap(base, hole);
}

/* By the page in the middle of an expert, which is then taken out of the page table. */
static void a_touch_is_seen_once(void)
{
    const uint32_t unit = MADE_EXPERTS + 3;
    const volatile char *middle;
    struct mp_paged *paged;
    uint64_t dense_bytes;
    int kept;

    open_model();
    middle = base + made_offset(1, 0, 3) + MADE_EXPERT_BYTES / 2;
    paged = mp_entry_begin(0);
    CHECK(paged != NULL);
    /* Mapping something else next to an expert takes the file's huge page out of the table, too. */
    while (!mp_paged_dense_done(paged->dense, &dense_bytes))
        sched_yield();
    kept = paged->pagemap_fd;
    paged->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(paged->pagemap_fd >= 0);
    (void)mp_paged_was_touched(paged, unit);
    for (int i = 0; i < 2; i++) {
        CHECK(!mp_paged_was_touched(paged, unit));
        (void)*middle;
        CHECK(mp_paged_was_touched(paged, unit));
    }
    CHECK(!mp_paged_was_touched(paged, unit));
    close(paged->pagemap_fd);
    paged->pagemap_fd = kept;
    mp_entry_end(paged);
    close_model();
}

/* Neighbours whose expert numbers differ as their layers do are two layers. */
static void each_layer_is_opened(void)
{
    open_model();
    copy_expert(1, 0, 4);
    CHECK_EQ(look().layer, 1);
    copy_expert(2, 0, 5);
    CHECK_EQ(look().layer, 2);
    close_model();
}

static void slots_are_pinned_once(void)
{
    open_model();
    for (uint32_t e = 0; e < 6; e++)
        copy_expert(0, 0, e);
    CHECK_EQ(pins, 1);
    CHECK(pinned_bytes > 0);
    CHECK_EQ(look().copies, 6);
    close_model();
    pin_fails = true;
    mp_test_drop_log(); /* that they are not pinned */
    open_model();
    for (uint32_t e = 0; e < 3; e++) {
        copy_expert(0, 0, e);
        CHECK(!is_alias(0));
    }
    CHECK_EQ(pins, 1);
    CHECK_EQ(look().copies, 0);
    close_model();
    pin_fails = false;
}

static void *copy_elsewhere(void *arg)
{
    (void)arg;
    copy(made_offset(2, 0, 3), MADE_EXPERT_BYTES, 1);
    CHECK(!is_alias(0));
    return NULL;
}

/* Only the thread that has queued copies may wait for them, so no other one closes the layer. */
static void another_thread_closes_no_layer(void)
{
    pthread_t thread;

    open_model();
    copy_expert(0, 0, 1);
    CHECK(is_alias(0));
    CHECK_EQ(pthread_create(&thread, NULL, copy_elsewhere, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(look().opened, 1);
    CHECK_EQ(look().layer, 0);
    CHECK_EQ(synchronized[0], 0);
    mp_interposer_table.synchronized(&backends[1], false); /* which is another one */
    CHECK_EQ(pthread_create(&thread, NULL, copy_elsewhere, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(look().opened, 1);
    copy(made_offset(0, 0, 1), MADE_EXPERT_BYTES, 1); /* the same layer to another backend */
    CHECK_EQ(synchronized[0], 1);
    CHECK_EQ(synchronized[1], 0);
    mp_interposer_table.synchronized(&backends[1], false);
    copy_expert(1, 0, 1); /* nothing is under way any more */
    CHECK_EQ(synchronized[1], 0);
    mp_interposer_table.synchronized(&backends[1], true);
    CHECK_EQ(synchronized[0], 1);
    mp_interposer_table.synchronized(&backends[0], true); /* ends, with a copy under way */
    CHECK_EQ(synchronized[0], 2);
    close_model();
    CHECK_EQ(synchronized[0], 2);
}

int main(void)
{
    made_find_more = find_more;
    made_path();
    made_start("80%", "expert");
    RUN(ids_open_a_layer_for_all_that_they_name);
    RUN(what_is_no_list_of_ids_is_ignored);
    RUN(long_lists_are_counted_only);
    RUN(neighbours_are_copied_one_by_one);
    RUN(other_copies_are_the_programs);
    RUN(a_tail_ends_with_its_page);
    RUN(another_thread_closes_no_layer);
    RUN(a_mapping_ends_with_its_last_byte);
    RUN(a_touch_is_seen_once);
    RUN(slots_are_pinned_once);
    RUN(each_layer_is_opened);
    return 0;
}
