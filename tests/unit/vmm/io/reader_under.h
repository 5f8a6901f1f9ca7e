#ifndef MP_TESTS_READER_UNDER_H
#define MP_TESTS_READER_UNDER_H

/* A reader whose calls fail by a plan. */
#include "vmm/io/reader.h"

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"

#define READS (FAULT_BIT(pread) | FAULT_BIT(io_uring_read))
#define BLOCK 65536

static bool with_uring;
static const char *engine_name;

/* The largest alignment there is, so that any direct descriptor takes it. */
static unsigned char memory[8 * BLOCK] __attribute__((aligned(BLOCK)));

/* With the probes for direct descriptors behind them, so that failures hit reads of tickets. */
static inline struct mp_files *open_probed(void)
{
    struct mp_files *files = test_files_open();
    uint32_t align;

    for (uint32_t i = 0; i < TEST_FILES; i++)
        (void)mp_files_direct_fd(files, i, &align);
    return files;
}

static inline struct mp_reader_config config_for(struct mp_files *files)
{
    return (struct mp_reader_config){
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = 3,
        .threads = 3,
        .chunk_bytes = BLOCK,
    };
}

static inline struct mp_reader *reader_new(struct mp_files *files)
{
    const struct mp_reader_config config = config_for(files);
    struct mp_reader *reader = NULL;

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_STR(mp_reader_engine(reader), engine_name);
    return reader;
}

static inline void set_ticket(struct mp_ticket *ticket, bool direct, uint32_t file,
                              uint64_t need_bytes)
{
    memset(ticket, 0, sizeof(*ticket));
    ticket->direct = direct;
    ticket->extent_count = 1;
    ticket->extents[0] = (struct mp_extent){
        .file = file,
        .bytes = (need_bytes + BLOCK - 1) / BLOCK * BLOCK,
        .need_bytes = need_bytes,
        .dst = memory,
    };
}

/* Submit and wait under the plan. Returns how many calls it changed. */
static inline uint64_t read_under(struct mp_reader *reader, struct mp_ticket *ticket,
                                  const struct fault_plan *plan)
{
    memset(memory, 0x11, sizeof(memory));
    fault_begin(plan);
    mp_reader_submit(reader, ticket);
    mp_reader_wait(reader, ticket);
    return fault_end();
}

static inline void check_done(struct mp_ticket *ticket)
{
    if (mp_ticket_state(ticket) != MP_TICKET_DONE)
        fprintf(stderr, "%s\n", ticket->error.text);
    CHECK_EQ(mp_ticket_state(ticket), MP_TICKET_DONE);
    test_check_ticket(ticket);
}

static inline void check_failed(const struct mp_ticket *ticket, const char *code, const char *part)
{
    CHECK_EQ(mp_ticket_state(ticket), MP_TICKET_FAILED);
    CHECK_EQ(ticket->error.status, MP_ERR_IO);
    CHECK_STR(ticket->error.code, code);
    if (strstr(ticket->error.text, part) == NULL || strstr(ticket->error.text, "file-") == NULL) {
        fprintf(stderr, "\"%s\" lacks \"%s\" or the file\n", ticket->error.text, part);
        exit(1);
    }
}

static inline void check_works_again(struct mp_reader *reader, struct mp_ticket *ticket)
{
    memset(memory, 0x22, sizeof(memory));
    mp_reader_submit(reader, ticket);
    mp_reader_wait(reader, ticket);
    check_done(ticket);
    CHECK_EQ(ticket->error.status, MP_OK);
}

#endif
