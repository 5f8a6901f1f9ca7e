#ifndef MP_TESTS_ODD_UNITS_H
#define MP_TESTS_ODD_UNITS_H

/* Units of odd sizes at odd places of three files. */
#include "vmm/space/space.h"

#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"

#define FILE_0_BYTES (3 * MIB + 1237)
#define FILE_1_BYTES (1 * MIB + 4095)
#define FILE_2_BYTES 50001

static struct mp_backend *backend;
static struct mp_files *files;

/* Pieces at odd places: in several files, side by side, overlapping, in one block, of one byte, at
 * the start and at the end of a file. */
static const struct mp_unit odd_units[] = {
    { { { 0, 0, 1 } }, 1 },
    { { { 0, 100001, 30000 }, { 0, 200003, 30000 }, { 0, 300007, 30000 } }, 3 },
    { { { 0, 130001, 30000 }, { 1, 200003, 30000 }, { 2, 7, 30000 } }, 3 },
    { { { 1, 777, 50000 }, { 0, 777, 50000 } }, 2 },
    { { { 0, 500000, 10000 }, { 0, 510000, 10000 }, { 0, 520000, 10000 } }, 3 },
    { { { 0, 520000, 64000 }, { 0, 456000, 64000 } }, 2 },
    { { { 0, 600000, 5000 }, { 0, 602000, 5000 }, { 0, 600000, 5000 } }, 3 },
    { { { 0, 700000, 20000 }, { 0, 701000, 10 } }, 2 },
    { { { 2, 100, 10 }, { 2, 200, 10 }, { 2, 300, 10 }, { 2, 4090, 10 } }, 4 },
    { { { 0, FILE_0_BYTES - 1, 1 } }, 1 },
    { { { 0, FILE_0_BYTES - 30001, 30001 }, { 1, FILE_1_BYTES - 8192, 8192 } }, 2 },
    { { { 2, 0, FILE_2_BYTES } }, 1 },
    { { { 0, 1 * MIB, 1 * MIB } }, 1 },
    { { { 0, 1 * MIB + 5, 1 * MIB } }, 1 },
    { { { 1, 4096, 4096 }, { 1, 12288, 4096 }, { 1, 8192, 4096 } }, 3 },
};

#define ODD_UNITS ((uint32_t)MP_ARRAY_LEN(odd_units))

static inline struct mp_space_config config_of(const struct mp_unit *units, uint32_t count)
{
    return (struct mp_space_config){
        .backend = backend,
        .files = files,
        .units = units,
        .unit_count = count,
        .budget_bytes = UINT64_MAX,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
    };
}

static inline struct mp_space *create(const struct mp_space_config *config)
{
    struct mp_space *space = NULL;
    const enum mp_status status = mp_space_create(config, &space);

    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    CHECK(mp_space_check(space));
    return space;
}

#endif
