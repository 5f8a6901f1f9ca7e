/*
 * The host tier: filled by several threads, placed, short of memory, and with a disk that fails, is
 * short or changes. Whatever happens to the reads, what is handed out has the bytes of its file.
 * Variants are kinds of host frames: handles, registered, unpinned.
 */
#include <errno.h>
#include <numaif.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/fault/wrap.h"
#include "tests/device/vmm/host_rig.h"

#define READS (FAULT_BIT(pread) | FAULT_BIT(io_uring_read))

/* ---- reads that the test holds back */

#define KEPT_MAX 16

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mp_reader *kept_reader;
static struct mp_ticket *kept[KEPT_MAX];
static uint32_t kept_count, kept_demands;
static bool holding;

void __real_mp_reader_submit(struct mp_reader *reader, struct mp_ticket *ticket);
void __wrap_mp_reader_submit(struct mp_reader *reader, struct mp_ticket *ticket);

void __wrap_mp_reader_submit(struct mp_reader *reader, struct mp_ticket *ticket)
{
    pthread_mutex_lock(&kept_lock);
    if (holding && ticket->extents[0].src == NULL /* a file */) {
        CHECK(kept_count < KEPT_MAX);
        kept_reader = reader;
        kept[kept_count++] = ticket;
        kept_demands += ticket->priority == MP_PRIORITY_DEMAND;
        mp_reader_submit_held(reader, ticket);
    } else {
        __real_mp_reader_submit(reader, ticket);
    }
    pthread_mutex_unlock(&kept_lock);
}

static uint32_t count_reads(uint32_t *demands_p)
{
    uint32_t count;

    pthread_mutex_lock(&kept_lock);
    count = kept_count;
    *demands_p = kept_demands;
    pthread_mutex_unlock(&kept_lock);
    return count;
}

/* There are this many reads soon, and no more after a while. */
static void expect_reads(uint32_t count, uint32_t demands)
{
    const struct timespec pause = { 0, 1000000 }, longer = { 0, 50000000 };
    uint32_t now;

    while (count_reads(&now) < count)
        nanosleep(&pause, NULL);
    nanosleep(&longer, NULL);
    CHECK_EQ(count_reads(&now), count);
    CHECK_EQ(now, demands);
}

/* Six units are read at the same time, of them two that nobody waits for. */
static void six_units_are_read_at_once(void)
{
    struct rig rig;

    open_rig(&rig, MP_IO_BUFFERED, 4);
    CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
    kept_count = kept_demands = 0;
    holding = true;
    start_tier(&rig); /* begins to fill */
    expect_reads(2, 0);
    for (uint32_t u = UNITS - 8; u < UNITS; u++)
        submit(&rig, u, MP_PRIORITY_DEMAND);
    expect_reads(6, 4);
    pthread_mutex_lock(&kept_lock);
    holding = false;
    for (uint32_t i = 0; i < kept_count; i++)
        mp_reader_let_go(kept_reader, kept[i]);
    pthread_mutex_unlock(&kept_lock);
    for (uint32_t u = UNITS - 8; u < UNITS; u++)
        CHECK_EQ(await(&rig, u)->status, MP_OK);
    mp_host_tier_wait_filled(rig.tier);
    CHECK_EQ(count_held(&rig), UNITS);
    close_rig(&rig);
}

/* ---- filling */

struct looker {
    struct rig *rig;
    uint32_t seed, seen;
    _Atomic(bool) *stop;
};

static void *look_about(void *ctx)
{
    struct looker *looker = ctx;

    do {
        looker->seed = looker->seed * 1103515245u + 12345u;
        looker->seen += look_in_host(looker->rig, looker->seed / 65536 % UNITS);
    } while (!atomic_load(looker->stop));
    return NULL;
}

/* Several threads read, several look at what is there already, and loads come in between. */
static void threads_fill_what_others_look_at(void)
{
    static const enum mp_io_mode modes[] = { MP_IO_BUFFERED, MP_IO_AUTO };

    for (unsigned way = 0; way < 8; way++) {
        _Atomic(bool) stop = false;
        struct looker lookers[3];
        pthread_t threads[3];
        struct rig rig;

        open_rig(&rig, modes[way % 2], way & 2 ? 4 : 2);
        CHECK_EQ(make_tier(&rig, (way & 4) != 0, 4), MP_OK);
        start_tier(&rig);
        for (unsigned i = 0; i < 3; i++) {
            lookers[i] = (struct looker){ &rig, 17 * i + way, 0, &stop };
            CHECK_EQ(pthread_create(&threads[i], NULL, look_about, &lookers[i]), 0);
        }
        load_all(&rig);
        mp_host_tier_wait_filled(rig.tier);
        load_all(&rig);
        CHECK_EQ(count_held(&rig), rig.layout.plan.host_slots);
        atomic_store(&stop, true);
        for (unsigned i = 0; i < 3; i++)
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK(lookers[0].seen + lookers[1].seen + lookers[2].seen > 0);
        close_rig(&rig);
    }
}

/* ---- where memory is, and how much of it */

/* Frames of ours lie on the device's node; handles say theirs to the driver. */
static void frames_are_placed_on_the_node(void)
{
    unsigned long nodes[16] = { 0 };
    int policy = -1;
    struct rig rig;
    const char *slot;

    open_rig(&rig, MP_IO_AUTO, 4);
    CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
    start_tier(&rig);
    mp_host_tier_wait_filled(rig.tier);
    slot = mp_host_tier_lease(rig.tier, 0);
    CHECK(slot != NULL);
    if (!rig_handles) {
        if (get_mempolicy(&policy, nodes, sizeof(nodes) * 8, (void *)(uintptr_t)slot,
                          MPOL_F_ADDR) != 0)
            fprintf(stderr, "    not checked: this system shows no policies\n");
        else
            CHECK(policy == MPOL_PREFERRED && nodes[0] == 1);
    }
    mp_host_tier_release(rig.tier, 0);
    close_rig(&rig);
}

static void without_memory_there_is_no_tier(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(mmap) };
    struct rig rig;

    open_rig(&rig, MP_IO_AUTO, 4);
    rig.space.host_budget_bytes = 4096;
    CHECK_EQ(mp_space_make_plan(&rig.space, &(struct mp_space_plan){ 0 }), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK(strstr(mp_error_last()->text, "--host-budget") != NULL);

    /* Neither handles nor pages, from the first frame on. */
    fake_api.fail("cuMemCreate", 0, MP_CU_ERROR_OUT_OF_MEMORY, true);
    fault_begin(&plan);
    CHECK_EQ(make_tier(&rig, false, 2), MP_ERR_NO_SPACE);
    CHECK(fault_end() > 0);
    CHECK_STR(mp_error_last()->code, "E_DEVICE_MEMORY");
    fake_api.reset();
    CHECK(rig.tier == NULL);
    CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
    start_tier(&rig);
    load_all(&rig);
    close_rig(&rig);
}

/* ---- what happens to files */

/* The error is of this unit: its code, one of its files, a byte that is read for it. */
static void check_error(const struct mp_error *error, uint32_t unit, const char *code)
{
    const char *at = strstr(error->text, "byte ");
    uint64_t byte;
    bool named = false;

    CHECK_EQ(error->status, MP_ERR_IO);
    CHECK_STR(error->code, code);
    if (strcmp(code, "E_FILE_CHANGED") == 0)
        at = "byte 0";
    CHECK(at != NULL);
    byte = strtoull(at + 5, NULL, 10);
    for (uint32_t i = 0; i < units[unit].piece_count; i++) {
        const struct mp_piece *piece = &units[unit].pieces[i];

        if (strstr(error->text, paths[piece->file]) == NULL)
            continue;
        named |=
            strcmp(code, "E_READ") != 0 || (byte + 65536 >= piece->offset_bytes &&
                                            byte <= piece->offset_bytes + piece->bytes + 65536);
    }
    if (!named)
        CHECK_STR(error->text, "a file and a byte of the unit");
}

/* All reads fail from the start: nothing is here, and each load gets the reason. Then the disk is
 * back.
 */
static void a_disk_that_fails_is_reported(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = READS };

    for (unsigned way = 0; way < 4; way++) {
        struct rig rig;

        open_rig(&rig, way & 1 ? MP_IO_BUFFERED : MP_IO_AUTO, 2);
        CHECK_EQ(make_tier(&rig, (way & 2) != 0, 2), MP_OK);
        fault_begin(&plan);
        start_tier(&rig);
        mp_host_tier_wait_filled(rig.tier);
        CHECK_EQ(count_held(&rig), 0);
        for (uint32_t u = 0; u < UNITS; u++)
            submit(&rig, u, u % 2 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);
        for (uint32_t u = 0; u < UNITS; u++)
            check_error(await(&rig, u), u, "E_READ");
        CHECK_EQ(count_held(&rig), 0);
        CHECK(fault_end() > UNITS);
        load_all(&rig);
        CHECK(mp_host_tier_check(rig.tier));
        close_rig(&rig);
    }
}

/* One read fails for good at any time, while the tier fills and while units pass through. */
static void a_read_that_fails_fails_one_unit(void)
{
    unsigned reported = 0;

    for (uint64_t skip = 0; skip < 60; skip += 4) {
        const struct fault_plan plan = {
            .mode = FAULT_ONCE, .calls = READS, .skip = skip, .error_number = EINVAL
        };
        struct rig rig;

        open_rig(&rig, MP_IO_BUFFERED, 2);
        CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
        fault_begin(&plan);
        start_tier(&rig);
        for (uint32_t u = UNITS; u-- > 0;)
            submit(&rig, u, MP_PRIORITY_DEMAND);
        for (uint32_t u = 0; u < UNITS; u++) {
            const struct mp_error *error = await(&rig, u);

            if (error->status != MP_OK)
                check_error(error, u, "E_READ");
            reported += error->status != MP_OK;
        }
        CHECK_EQ(fault_end(), 1);
        (void)count_held(&rig);
        load_all(&rig);
        close_rig(&rig);
    }
    CHECK(reported >= 5);
}

static void short_reads_are_continued(void)
{
    static const uint32_t lengths[] = { 1000, 4096, 5001 };

    for (size_t i = 0; i < MP_ARRAY_LEN(lengths); i++) {
        const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                         .calls = READS,
                                         .short_bytes = lengths[i] };
        struct rig rig;

        open_rig(&rig, i == 1 ? MP_IO_AUTO : MP_IO_BUFFERED, 2);
        CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
        fault_begin(&plan);
        start_tier(&rig);
        load_all(&rig);
        mp_host_tier_wait_filled(rig.tier);
        CHECK(fault_end() > UNITS);
        CHECK_EQ(count_held(&rig), rig.layout.plan.host_slots);
        close_rig(&rig);
    }
}

static void files_that_end_early_are_reported(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                     .calls = READS,
                                     .short_bytes = FAULT_EOF };
    struct rig rig;

    open_rig(&rig, MP_IO_BUFFERED, 2);
    CHECK_EQ(make_tier(&rig, false, 2), MP_OK);
    fault_begin(&plan);
    start_tier(&rig);
    for (uint32_t u = 0; u < UNITS; u++)
        submit(&rig, u, MP_PRIORITY_DEMAND);
    for (uint32_t u = 0; u < UNITS; u++)
        check_error(await(&rig, u), u, "E_TRUNCATED");
    CHECK(fault_end() > 0);
    CHECK_EQ(count_held(&rig), 0);
    close_rig(&rig);
}

static void cut_it(void)
{
    CHECK_EQ(truncate(paths[1], 1000), 0);
}

/* Times of files move in ticks. */
static void wait_a_tick(void)
{
    const struct timespec time = { 0, 30000000 };

    nanosleep(&time, NULL);
}

static void write_it_anew(void)
{
    const int fd = open(paths[1], O_WRONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, "other", 5, 4), 5);
    CHECK_EQ(close(fd), 0);
}

static void put_another_in_its_place(void)
{
    char other[4300];

    snprintf(other, sizeof(other), "%s.other", paths[1]);
    CHECK_EQ(rename(paths[1], other), 0);
    write_file(1);
}

/* Before the first read, and when half of the units are here: those stay right, others fail. */
static void changed_files_are_noticed(void)
{
    static void (*const changes[])(void) = { cut_it, write_it_anew, put_another_in_its_place };

    for (unsigned way = 0; way < 6; way++) {
        const bool late = way >= 3;
        uint32_t held, failed = 0;
        struct rig rig;

        open_rig(&rig, MP_IO_BUFFERED, 2);
        CHECK_EQ(make_tier(&rig, way % 2 == 0, 2), MP_OK);
        wait_a_tick();
        if (!late)
            changes[way % 3]();
        start_tier(&rig);
        mp_host_tier_wait_filled(rig.tier);
        held = count_held(&rig);
        CHECK_EQ(held, late ? rig.layout.plan.host_slots : 0);
        if (late)
            changes[way % 3]();
        for (uint32_t u = 0; u < UNITS; u++) {
            const bool here = look_in_host(&rig, u);
            const struct mp_error *error;

            submit(&rig, u, MP_PRIORITY_DEMAND);
            error = await(&rig, u);
            CHECK_EQ(error->status == MP_OK, here);
            failed += error->status != MP_OK;
            if (error->status != MP_OK)
                check_error(error, u, "E_FILE_CHANGED");
        }
        CHECK_EQ(failed, UNITS - held);
        CHECK_EQ(count_held(&rig), held);
        close_rig(&rig);
    }
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "handles";
    mp_log_set_sink(world_keep_line, NULL);
    setenv("FAKECUDA_GRANULE", "65536", 1);
    rig_handles = strcmp(variant, "handles") == 0;
    rig_unpinned = strcmp(variant, "unpinned") == 0;
    if (!rig_handles) {
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
        setenv("FAKECUDA_NUMA_ID", "-1", 1);
    }
    find_fake();
    make_units();
    for (uint32_t f = 0; f < FILES; f++)
        snprintf(paths[f], sizeof(paths[f]), "%s/weights-%u.bin", test_tmpdir(), f);
    RUN(six_units_are_read_at_once);
    RUN(threads_fill_what_others_look_at);
    RUN(frames_are_placed_on_the_node);
    RUN(without_memory_there_is_no_tier);
    RUN(a_disk_that_fails_is_reported);
    RUN(a_read_that_fails_fails_one_unit);
    RUN(short_reads_are_continued);
    RUN(files_that_end_early_are_reported);
    RUN(changed_files_are_noticed);
    return 0;
}
