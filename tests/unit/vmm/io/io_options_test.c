/* The options of the reader. */
#include "vmm/io/io_options.h"

#include "tests/support/test.h"

static void defaults_and_limits_make_a_reader_configuration(void)
{
    static const char *const modes[MP_IO_MODE_COUNT] = { "auto", "direct", "buffered" };
    struct mp_io_config config;
    struct mp_opt_group groups[] = { { "MOEPAGER_", mp_io_opts, &config, NULL },
                                     { .prefix = NULL } };
    struct mp_reader_config reader;

    CHECK_EQ(mp_opt_load(mp_io_opts, "NOT_SET_", &config), 0);
    CHECK_EQ(config.mode, MP_IO_AUTO);
    reader = mp_io_reader_config(&config, NULL, mp_clock_monotonic(), NULL);
    CHECK(reader.uring);
    CHECK(reader.depth >= 1 && reader.depth <= 256);
    CHECK(reader.threads >= 1 && reader.threads <= 64);
    CHECK_EQ(reader.chunk_bytes % 4096, 0);

    for (int mode = 0; mode < MP_IO_MODE_COUNT; mode++) {
        CHECK_EQ(mp_opt_set(groups, "io", modes[mode]), MP_OK);
        CHECK_EQ(config.mode, mode);
    }
    CHECK_EQ(mp_opt_set(groups, "MOEPAGER_IO_CHUNK", "5000"), MP_OK);
    CHECK_EQ(mp_opt_set(groups, "MOEPAGER_URING", "off"), MP_OK);
    CHECK_EQ(mp_opt_set(groups, "MOEPAGER_IO_DEPTH", "257"), MP_ERR_CONFIG);
    CHECK_EQ(mp_opt_set(groups, "MOEPAGER_IO_THREADS", "0"), MP_ERR_CONFIG);
    reader = mp_io_reader_config(&config, NULL, mp_clock_monotonic(), NULL);
    CHECK_EQ(reader.chunk_bytes, 8192);
    CHECK(!reader.uring);
}

int main(void)
{
    RUN(defaults_and_limits_make_a_reader_configuration);
    return 0;
}
