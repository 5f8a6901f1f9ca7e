/*
 * Costs and fits are checked on invented backends of many granules, over thousands of random class
 * sets (the seed is printed); frames and slots on the host backend.
 */
#include "tests/support/test.h"

#include <inttypes.h>

#include "vmm/base/error.h"
#include "vmm/space/tier.h"

#define MIB (UINT64_C(1) << 20)
#define SEED UINT64_C(0x5eed0001)

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 20) % limit;
}

static struct mp_backend backend_with_granule(uint64_t granule_bytes)
{
    return (struct mp_backend){
        .ops = &mp_backend_host,
        .caps = { .granule_bytes = granule_bytes,
                  .alias_align_bytes = granule_bytes,
                  .frame_bytes_max = UINT64_C(1) << 46,
                  .frames_max = UINT32_MAX },
    };
}

static uint64_t cost_of(const struct mp_backend *backend, const struct mp_tier_class *classes,
                        uint32_t count)
{
    uint64_t bytes = 0;

    CHECK_EQ(mp_tier_cost(backend, classes, count, &bytes), MP_OK);
    return bytes;
}

static uint32_t random_classes(struct mp_tier_class *classes)
{
    const uint32_t count = (uint32_t)(1 + random_below(MP_TIER_CLASSES_MAX));

    for (uint32_t i = 0; i < count; i++) {
        classes[i] = (struct mp_tier_class){ 0 };
        classes[i].slot_bytes = 4096 * (1 + random_below(UINT64_C(1) << random_below(16)));
        classes[i].slots = (uint32_t)(1 + random_below(UINT64_C(1) << random_below(14)));
    }
    return count;
}

/* The waste of rounding, apart from the last frame of each class, is 2 % where any way of sharing
 * a frame achieves that; slots of at least the granule never lose more than half. */
static void cost_stays_close_to_the_slots(void)
{
    static const uint64_t granules[] = { 4096, 65536, 2 * MIB };

    random_state = SEED;
    for (unsigned round = 0; round < 3000; round++) {
        const struct mp_backend backend = backend_with_granule(granules[round % 3]);
        const uint64_t granule = backend.caps.granule_bytes;
        struct mp_tier_class class = { 4096 * (1 + random_below(5000)), 1, 0, false, false };
        uint64_t used, cost, before = 0;

        class.slots = (uint32_t)(1 + random_below(5000));
        used = class.slot_bytes * class.slots;
        cost = cost_of(&backend, &class, 1);
        CHECK(cost >= used && cost % granule == 0);
        if (granule <= 65536)
            CHECK(cost <= used + used / 40 + granule);
        else if (class.slot_bytes >= granule)
            CHECK(cost < 2 * used);
        for (class.slots = 1; class.slots < 200; class.slots++) {
            cost = cost_of(&backend, &class, 1);
            CHECK(cost >= before);
            before = cost;
        }
    }
}

/* Two slots of 80 KiB would leave less empty in three granules, but a frame has 176 KiB at most. */
static void no_frame_is_larger_than_the_largest(void)
{
    const struct mp_tier_class two = { .slot_bytes = 80 << 10, .slots = 2 };
    struct mp_backend backend = backend_with_granule(64 << 10);

    backend.caps.frame_bytes_max = 176 << 10;
    CHECK_EQ(cost_of(&backend, &two, 1), 256 << 10);
    backend.caps.frame_bytes_max = 192 << 10;
    CHECK_EQ(cost_of(&backend, &two, 1), 192 << 10);
}

static void fit_never_exceeds_budget_request_or_minimum(void)
{
    static const uint64_t granules[] = { 4096, 65536, 2 * MIB };
    unsigned shrunk = 0;

    random_state = SEED + 1;
    for (unsigned round = 0; round < 4000; round++) {
        const struct mp_backend backend = backend_with_granule(granules[round % 3]);
        struct mp_tier_class wanted[MP_TIER_CLASSES_MAX], least[MP_TIER_CLASSES_MAX];
        struct mp_tier_class got[MP_TIER_CLASSES_MAX], again[MP_TIER_CLASSES_MAX];
        const uint32_t count = random_classes(wanted);
        uint64_t smallest, full, budget, cost;

        for (uint32_t i = 0; i < count; i++) {
            least[i] = wanted[i];
            least[i].slots = wanted[i].slots < 2 ? wanted[i].slots : 2;
        }
        smallest = cost_of(&backend, least, count);
        full = cost_of(&backend, wanted, count);
        budget = smallest + random_below(full - smallest + full / 8 + 2);
        memcpy(got, wanted, sizeof(got));
        memcpy(again, wanted, sizeof(again));
        CHECK_EQ(mp_tier_fit(&backend, budget, "--budget", got, count), MP_OK);
        CHECK_EQ(mp_tier_fit(&backend, budget, "--budget", again, count), MP_OK);
        cost = cost_of(&backend, got, count);
        CHECK(cost <= budget);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(got[i].slots >= least[i].slots && got[i].slots <= wanted[i].slots);
            CHECK_EQ(got[i].slots, again[i].slots);
            CHECK_EQ(got[i].slot_bytes, wanted[i].slot_bytes);
        }
        if (budget >= full)
            CHECK_EQ(cost, full);
        shrunk += budget < full;

        memcpy(got, wanted, sizeof(got));
        CHECK_EQ(mp_tier_fit(&backend, smallest, "--budget", got, count), MP_OK);
        memcpy(got, wanted, sizeof(got));
        CHECK_EQ(mp_tier_fit(&backend, smallest - 1, "--budget", got, count), MP_ERR_CONFIG);
        for (uint32_t i = 0; i < count; i++)
            CHECK_EQ(got[i].slots, wanted[i].slots);
    }
    CHECK(shrunk > 1000);
}

static void fit_shrinks_in_proportion_and_uses_the_budget(void)
{
    const struct mp_backend backend = backend_with_granule(4096);
    struct mp_tier_class classes[] = { { MIB, 1000, 0, false, false },
                                       { 4 * MIB, 500, 0, false, false } };
    struct mp_tier_class one[] = { { 40960, 64, 0, false, false } };

    CHECK_EQ(mp_tier_fit(&backend, 1500 * MIB, "--budget", classes, 2), MP_OK);
    CHECK(classes[0].slots >= 498 && classes[0].slots <= 504);
    CHECK(classes[1].slots >= 248 && classes[1].slots <= 252);
    CHECK(classes[0].slots + 4 * classes[1].slots >= 1496);

    CHECK_EQ(mp_tier_fit(&backend, 40960 * 17 + 40959, "--budget", one, 1), MP_OK);
    CHECK_EQ(one[0].slots, 17);
}

static void too_small_a_budget_is_refused_with_both_numbers(void)
{
    const struct mp_backend backend = backend_with_granule(4096);
    struct mp_tier_class classes[] = { { 8192, 10, 0, false, false },
                                       { 4096, 1, 0, false, false } };

    CHECK_EQ(mp_tier_fit(&backend, 20479, "--budget", classes, 2), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK(strstr(mp_error_last()->text, "budget of 20479 bytes") != NULL);
    CHECK(strstr(mp_error_last()->text, "minimum of 20480 bytes") != NULL);
    CHECK_EQ(mp_tier_fit(&backend, 20480, "--budget", classes, 2), MP_OK);
    CHECK_EQ(classes[0].slots, 2);
    CHECK_EQ(classes[1].slots, 1);
}

static void impossible_classes_are_refused(void)
{
    const struct mp_backend backend = backend_with_granule(4096);
    struct mp_tier_class classes[MP_TIER_CLASSES_MAX + 1];
    uint64_t bytes = 5;

    for (size_t i = 0; i < MP_ARRAY_LEN(classes); i++)
        classes[i] = (struct mp_tier_class){ 4096, 4, 0, false, false };
    CHECK_EQ(mp_tier_cost(&backend, classes, 0, &bytes), MP_ERR_INVALID);
    CHECK_EQ(mp_tier_cost(&backend, classes, MP_TIER_CLASSES_MAX + 1, &bytes), MP_ERR_INVALID);
    classes[1].slot_bytes = 4097;
    CHECK_EQ(mp_tier_cost(&backend, classes, 2, &bytes), MP_ERR_INVALID);
    classes[1].slot_bytes = 0;
    CHECK_EQ(mp_tier_fit(&backend, 1 << 20, "--budget", classes, 2), MP_ERR_INVALID);
    classes[1] = (struct mp_tier_class){ 4096, 0, 0, false, false };
    CHECK_EQ(mp_tier_fit(&backend, 1 << 20, "--budget", classes, 2), MP_ERR_INVALID);
    classes[1] = (struct mp_tier_class){ UINT64_C(1) << 40, UINT32_MAX, 0, false, false };
    CHECK_EQ(mp_tier_cost(&backend, classes, 2, &bytes), MP_ERR_OVERFLOW);
    CHECK_EQ(mp_tier_fit(&backend, UINT64_MAX, "--budget", classes, 2),
             MP_OK); /* shrinks to what counts */
    classes[1] = (struct mp_tier_class){ UINT64_C(1) << 63, 2, 0, false, false };
    CHECK_EQ(mp_tier_fit(&backend, UINT64_MAX, "--budget", classes, 2), MP_ERR_OVERFLOW);
    CHECK_EQ(bytes, 5);
}

#define MODEL_SLOTS_MAX 200

/* Random takes and gives against a plain array. */
static void take_gives_the_lowest_free_slot_and_addresses_stay_apart(void)
{
    static const struct mp_tier_class classes[] = { { 4096, MODEL_SLOTS_MAX, 0, false, false },
                                                    { 20480, 64, 0, false, false },
                                                    { 3 * MIB, 3, 0, false, false },
                                                    { 65536, 65, 0, false, false },
                                                    { 68 * MIB, 1, 0, false, false } };
    bool taken[MP_ARRAY_LEN(classes)][MODEL_SLOTS_MAX] = { { false } };
    const struct mp_backend_config config = { .numa_node = -1, .huge_pages = true };
    struct mp_backend *host;
    struct mp_tier *tier = NULL;

    random_state = SEED + 2;
    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, classes, MP_ARRAY_LEN(classes), &tier), MP_OK);
    CHECK_EQ(mp_tier_frame_bytes(tier), cost_of(host, classes, MP_ARRAY_LEN(classes)));
    for (unsigned round = 0; round < 20000; round++) {
        const uint32_t c = (uint32_t)random_below(MP_ARRAY_LEN(classes));
        const bool mostly_take = round / 2000 % 2 == 0;
        uint32_t lowest = 0, held = 0;

        while (lowest < classes[c].slots && taken[c][lowest])
            lowest++;
        for (uint32_t i = 0; i < classes[c].slots; i++)
            held += taken[c][i];
        if (random_below(4) < (mostly_take ? 3 : 1)) {
            struct mp_slot slot = { 99, 99 };

            if (lowest == classes[c].slots) {
                CHECK_EQ(mp_tier_take(tier, c, &slot), MP_ERR_NO_SPACE);
                CHECK_EQ(slot.index, 99);
            } else {
                CHECK_EQ(mp_tier_take(tier, c, &slot), MP_OK);
                CHECK_EQ(slot.class_index, c);
                CHECK_EQ(slot.index, lowest);
                taken[c][lowest] = true;
                held++;
            }
        } else if (held > 0) {
            uint32_t index = (uint32_t)random_below(classes[c].slots);

            while (!taken[c][index])
                index = (index + 1) % classes[c].slots;
            mp_tier_give(tier, (struct mp_slot){ c, index });
            taken[c][index] = false;
            held--;
        }
        CHECK_EQ(mp_tier_free_slots(tier, c), mp_tier_slots(tier, c) - held);
        CHECK(mp_tier_check(tier));
    }

    /* Every slot can be written from end to end without touching another. */
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t c = 0; c < MP_ARRAY_LEN(classes); c++) {
            for (uint32_t i = 0; i < classes[c].slots; i++) {
                uint64_t *words = mp_tier_address(tier, (struct mp_slot){ c, i });
                uint64_t *last = words + classes[c].slot_bytes / 8 - 1;

                CHECK_EQ((uintptr_t)words % 4096, 0);
                if (pass == 0)
                    *words = *last = c * 1000 + i + 1;
                CHECK_EQ(*words, c * 1000 + i + 1);
                CHECK_EQ(*last, c * 1000 + i + 1);
            }
        }
    }
    mp_tier_destroy(tier);
    mp_tier_destroy(NULL);
    mp_backend_close(host);
}

/* At most 64 MiB, or what the backend can do; at most 1/50 of a frame lost to granules, else as
 * little as can be; of counts that lose as much, the largest, or for small frames the smallest. */
static void slots_share_a_frame_by_size_and_granule(void)
{
    static const struct {
        uint64_t granule, most; /* in pages */
        uint64_t slot_pages;
        uint32_t per_frame, small_per_frame;
    } cases[] = {
        { 1, UINT64_C(1) << 34, 256, 64, 1 }, /* 64 MiB exactly */
        { 1, 7, 2, 3, 1 },
        { 16, 64, 3, 21, 16 },   /* 63 of 64 pages; 48 of 48 */
        { 50, 100, 49, 2, 1 },   /* one page of 50 is as much as may be lost */
        { 49, 98, 48, 1, 1 },    /* one of 49 is more, two of 98 are more still */
        { 384, 768, 370, 2, 2 }, /* the same part either way */
    };
    const struct mp_backend_config config = { .numa_node = -1 };
    struct mp_backend *host;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    for (size_t i = 0; i < 2 * MP_ARRAY_LEN(cases); i++) {
        const bool small = i % 2 == 1;
        const uint32_t want = small ? cases[i / 2].small_per_frame : cases[i / 2].per_frame;
        const struct mp_tier_class class = { cases[i / 2].slot_pages * 4096, 130, 0, false, small };
        struct mp_tier *tier;
        uint32_t first;

        host->caps.granule_bytes = cases[i / 2].granule * 4096;
        host->caps.frame_bytes_max = cases[i / 2].most * 4096;
        CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, &class, 1, &tier), MP_OK);
        CHECK_EQ(mp_tier_frame_slots(tier, 0, 0, &first), want);
        mp_tier_destroy(tier);
    }
    mp_backend_close(host);
}

/* Numbers of frames are 32 bits wide, over all classes together. */
static void more_frames_than_have_numbers_are_refused(void)
{
    static const struct mp_tier_class two[] = { { 4096, 1, UINT32_MAX - 8, true, false },
                                                { 4096, 1, 8, true, false } };
    const struct mp_backend_config config = { .numa_node = -1 };
    struct mp_backend *host;
    struct mp_tier *tier = NULL;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, two, 2, &tier), MP_ERR_OVERFLOW);
    CHECK(tier == NULL);
    mp_backend_close(host);
}

/* More than one word of free bits. A frame goes while nothing of it is taken, and the last slot is
 * taken meanwhile, so that free slots are looked for at the end; the frame that comes again is
 * found all the same. */
static void a_frame_that_comes_again_has_the_lowest_slots(void)
{
    static const struct mp_tier_class class = { 4096, 200, 200, false, true };
    const struct mp_backend_config config = { .numa_node = -1 };
    struct mp_slot slot = { 0, 0 };
    struct mp_backend *host;
    struct mp_tier *tier;
    uint32_t first, slots;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, &class, 1, &tier), MP_OK);
    slots = mp_tier_frame_slots(tier, 0, 0, &first);
    CHECK(first == 0 && slots > 0 && slots < 128);
    while (mp_tier_free_slots(tier, 0) > 0)
        CHECK_EQ(mp_tier_take(tier, 0, &slot), MP_OK);
    for (uint32_t i = 0; i < slots; i++)
        mp_tier_give(tier, (struct mp_slot){ 0, i });
    mp_tier_give(tier, (struct mp_slot){ 0, 199 });
    mp_tier_remove_frame(tier, 0, 0);
    CHECK_EQ(mp_tier_take(tier, 0, &slot), MP_OK);
    CHECK_EQ(slot.index, 199);
    CHECK_EQ(mp_tier_add_frame(tier, 0, 0), MP_OK);
    CHECK(mp_tier_check(tier));
    for (uint32_t i = 0; i < slots; i++) {
        CHECK_EQ(mp_tier_take(tier, 0, &slot), MP_OK);
        CHECK_EQ(slot.index, i);
    }
    CHECK_EQ(mp_tier_take(tier, 0, &slot), MP_ERR_NO_SPACE);
    mp_tier_destroy(tier);
    mp_backend_close(host);
}

static void create_fails_cleanly_at_every_backend_call(void)
{
    static const struct mp_tier_class classes[] = { { 40 * MIB, 3, 0, false, false },
                                                    { 4096, 100, 0, false, false } };
    const struct mp_backend_config config = { .numa_node = -1 };
    struct mp_backend *backend;
    int failures = 0;

    CHECK_EQ(mp_backend_open("fault:host", &config, &backend), MP_OK);
    for (int64_t n = 0;; n++) {
        struct mp_tier *tier = NULL;
        enum mp_status status;

        mp_backend_fault_set(backend, n, n % 2 == 0, MP_ERR_NO_SPACE);
        status = mp_tier_create(backend, MP_TIER_DEVICE, classes, 2, &tier);
        if (status == MP_OK) {
            CHECK(mp_tier_check(tier));
            mp_tier_destroy(tier);
            CHECK(mp_backend_fault_set(backend, -1, false, MP_OK) <= (uint64_t)n);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_SPACE);
        CHECK(tier == NULL);
        failures++;
    }
    CHECK_EQ(failures, 5); /* the question for free memory, and four frames */
    mp_backend_close(backend);
}

static void create_refuses_more_than_the_backend_has(void)
{
    static const struct mp_tier_class huge[] = { { 4096, UINT32_MAX, 0, false, false } };
    static const struct mp_tier_class many[] = { { 65 * MIB, 3, 0, false, false } };
    static const struct mp_tier_class later[] = { { 65 * MIB, 2, 5, false, false } };
    const struct mp_backend_config config = { .numa_node = -1 };
    struct mp_backend *host;
    struct mp_tier *tier = NULL;

    CHECK_EQ(mp_backend_open("host", &config, &host), MP_OK);
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, huge, 1, &tier), MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_TIER_MEMORY");
    host->caps.frames_max = 2;
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, many, 1, &tier), MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_FRAMES");
    CHECK(tier == NULL);

    /* Frames that may come later are not needed now. */
    CHECK_EQ(mp_tier_create(host, MP_TIER_DEVICE, later, 1, &tier), MP_OK);
    mp_tier_destroy(tier);
    mp_backend_close(host);
}

int main(void)
{
    fprintf(stderr, "seed %" PRIu64 "\n", SEED);
    RUN(cost_stays_close_to_the_slots);
    RUN(no_frame_is_larger_than_the_largest);
    RUN(fit_never_exceeds_budget_request_or_minimum);
    RUN(fit_shrinks_in_proportion_and_uses_the_budget);
    RUN(too_small_a_budget_is_refused_with_both_numbers);
    RUN(impossible_classes_are_refused);
    RUN(take_gives_the_lowest_free_slot_and_addresses_stay_apart);
    RUN(a_frame_that_comes_again_has_the_lowest_slots);
    RUN(slots_share_a_frame_by_size_and_granule);
    RUN(more_frames_than_have_numbers_are_refused);
    RUN(create_fails_cleanly_at_every_backend_call);
    RUN(create_refuses_more_than_the_backend_has);
    return 0;
}
