/* Files of requests: what is read, and what is refused with the line. */
#include "engine/cli/requests.h"

#include <string.h>
#include <unistd.h>

#include "engine/cli/simulate_cluster.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

static void right_ones(void)
{
    struct mp_requests r;

    CHECK_EQ(mp_requests_parse(
                 "f", "# who when how many\n0 0 8 1 2 3\n\n 2\t1.5 1 7\r\n1 1.5 2 9 9", 3, &r),
             MP_OK);
    CHECK_EQ(r.count, 3);
    CHECK(r.list[0].server == 0 && r.list[0].arrival_s == 0 && r.list[0].generated == 8);
    CHECK_EQ(r.list[0].prompt_tokens, 3);
    CHECK_EQ(r.list[0].prompt[2], 3);
    CHECK(r.list[1].server == 2 && r.list[1].arrival_s == 1.5 && r.list[1].prompt[0] == 7);
    CHECK(r.list[2].prompt_tokens == 2 && r.list[2].prompt[1] == 9);
    mp_requests_free(&r);
}

static void wrong_ones(void)
{
    static const char *const texts[][2] = {
        { "", "no request" },
        { "# none\n", "no request" },
        { "3 0 8 1\n", "no server" },
        { "x 0 8 1\n", "no server" },
        { "-1 0 8 1\n", "no server" },
        { "99999999999999999999 0 8 1\n", "no server" },
        { "0\n", "no time" },
        { "0 -1 8 1\n", "no time" },
        { "0 nan 8 1\n", "no time" },
        { "0 1e300 8 1\n", "no time" },
        { "0 1 0 1\n", "no number of tokens" },
        { "0 1 16777217 1\n", "no number of tokens" },
        { "0 1 8\n", "no prompt" },
        { "0 1 8 1 4294967296\n", "no id" },
        { "0 1 8 1x\n", "no id" },
        { "0 1 8 -1\n", "no id" },
        { "0 2 8 1\n0 1 8 1\n", "line 2: it arrives before" },
    };
    struct mp_requests r;

    for (size_t i = 0; i < MP_ARRAY_LEN(texts); i++) {
        CHECK_EQ(mp_requests_parse("f", texts[i][0], 3, &r), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_REQUESTS");
        if (strstr(mp_error_last()->text, texts[i][1]) == NULL) {
            fprintf(stderr, "'%s' lacks '%s'\n", mp_error_last()->text, texts[i][1]);
            exit(1);
        }
    }
}

static void memory_is_short(void)
{
    struct mp_requests r;
    uint64_t n = 0;

    for (;; n++) {
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_requests_parse("f", "0 0 8 1 2 3\n", 1, &r);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
    }
    CHECK_EQ(n, 2);
    mp_requests_free(&r);
}

/* `simulate --cluster --requests`: each allocation fails once, then it prints its row. */
static void a_simulation_with_requests(void)
{
    char path[] = "/tmp/mp-requests-XXXXXX", changes[] = "requests=1";
    const struct mp_args args = { .cluster = "tools/machines/bigbench.cluster",
                                  .requests = path,
                                  .places = "uniform",
                                  .changes = changes };
    static const char text[] = "0 0.5 1 7\n1 0.5 1 7\n2 0.5 1 7\n";
    const struct mp_settings settings = { 0 };
    const int file = mkstemp(path);
    enum mp_status status = MP_ERR_NO_MEMORY;
    uint64_t n = 0;

    CHECK(file >= 0 && write(file, text, sizeof(text) - 1) == sizeof(text) - 1);
    for (bool failed = true; failed; n++) {
        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_simulate_cluster(&args, &settings);
        failed = fault_end() > 0;
        CHECK(failed ? status != MP_OK : status == MP_OK);
    }
    CHECK(n > 5);
    close(file);
    unlink(path);
}

int main(void)
{
    RUN(right_ones);
    RUN(wrong_ones);
    RUN(memory_is_short);
    RUN(a_simulation_with_requests);
    return 0;
}
