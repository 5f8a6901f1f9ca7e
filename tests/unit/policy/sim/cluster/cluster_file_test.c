/*
 * Cluster files: what is read, what is refused and how, and every allocation failing once.
 */
#include "policy/sim/cluster/cluster.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define TOP "\"model\": \"mixtral-8x7b\", \"requests\": 3, \"prompt\": 5, \"gen\": 2, "
#define REST "\"latency_us\": 100, "
#define SERVER "\"machine\": \"h200\", \"device_gib\": 30, \"mbit\": 500, \"arrival_s\": 10"
#define SERVERS "\"servers\": [{ " SERVER " }]"
#define GOOD "{ " TOP REST SERVERS " }"

static enum mp_status parse(const char *text, const char *changes, struct mp_cluster *cluster)
{
    return mp_cluster_parse("c", text, strlen(text), changes, cluster);
}

static void a_file_is_read_with_its_defaults(void)
{
    struct mp_cluster c;

    CHECK_EQ(parse("{ \"note\": \"none\", " TOP REST "\"domains\": 2, \"servers\": [{ " SERVER
                   ", \"count\": 2 }, { " SERVER
                   ", \"devices\": 3, \"domain\": 0, \"reads\": false }] }",
                   NULL, &c),
             MP_OK);
    CHECK_EQ(c.server_count, 3);
    CHECK(c.servers[0].devices == 1 && c.servers[0].domain == 0 && c.servers[0].reads == 1);
    CHECK(c.servers[2].devices == 3 && c.servers[2].domain == 0 && c.servers[2].reads == 0);
    CHECK(c.servers[1].mbit == 500 && c.servers[1].arrival_s == 10);
    CHECK(c.requests == 3 && c.prompt == 5 && c.gen == 2 && c.latency_us == 100);
    CHECK(c.value_bytes == 2 && c.head_bytes == 0 && c.rows_once == 0 && c.restarts == 0);
    CHECK(c.call_us == 0 && c.skew == 1 && c.known == 1 && c.epoch_s == 300 && c.copies == 1);
    CHECK(c.model.experts == 8);
    mp_cluster_fini(&c);
    CHECK(c.servers == NULL);
}

/* GOOD with shares of 2 * 1 domains, 32 layers and 8 experts: 1, 2, ...; `last` is the last one. */
static const char *with_shares(size_t layers, const char *last)
{
    static char text[16384];
    size_t used = (size_t)snprintf(text, sizeof(text), "{ " TOP REST SERVERS ", \"shares\": [");

    for (size_t i = 0; i < 2 * layers * 8; i++) {
        const bool begins = i % 8 == 0, ends = i % 8 == 7, all = i + 1 == 2 * layers * 8;

        if (i % (8 * layers) == 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s[", i > 0 ? "], " : "");
        else if (begins)
            used += (size_t)snprintf(text + used, sizeof(text) - used, ", ");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", begins ? "[" : ", ");
        if (!all)
            used +=
                (size_t)snprintf(text + used, sizeof(text) - used, "%zu%s", i + 1, ends ? "]" : "");
    }
    snprintf(text + used, sizeof(text) - used, "%s]]] }", last);
    return text;
}

static void shares_are_read(void)
{
    static const char *const wrong[] = { "0", "-1", "1e7", "\"1\"", "[1]" };
    struct mp_cluster c;

    CHECK_EQ(parse(with_shares(32, "0.5"), NULL, &c), MP_OK);
    CHECK(c.shares[0] == 1 && c.shares[2 * 32 * 8 - 2] == 511 && c.shares[2 * 32 * 8 - 1] == 0.5);
    mp_cluster_fini(&c);
    CHECK(c.shares == NULL);
    for (size_t i = 0; i < MP_ARRAY_LEN(wrong); i++) {
        CHECK_EQ(parse(with_shares(32, wrong[i]), NULL, &c), MP_ERR_CONFIG);
        CHECK(strstr(mp_error_last()->text, "numbers above 0") != NULL);
    }
    CHECK_EQ(parse(with_shares(31, "1"), NULL, &c), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "[2 * domains][layers][experts]") != NULL);
    CHECK_EQ(parse(with_shares(32, "1"), "domains=2", &c), MP_ERR_CONFIG);
    mp_error_clear();
}

/* Of 30 GiB the weights that every device has leave a known number of slots. */
static void slots_are_what_the_weights_leave(void)
{
    struct mp_cluster c;
    uint64_t left;

    CHECK_EQ(parse(GOOD, NULL, &c), MP_OK);
    left = 30 * UINT64_C(1073741824) - mp_sim_other_bytes(&c.model);
    CHECK_EQ(mp_cluster_slots(&c, 0), left / mp_sim_expert_bytes(&c.model) - 1);
    c.servers[0].device_gib = 0.001;
    CHECK_EQ(mp_cluster_slots(&c, 0), 0);
    c.servers[0].device_gib = 1e6;
    c.model.hidden = c.model.expert_ffn = c.model.attention_params = c.model.vocabulary = 1;
    CHECK_EQ(mp_cluster_slots(&c, 0), 16777216);
    mp_cluster_fini(&c);
}

static void changes_replace_numbers(void)
{
    struct mp_cluster c;

    CHECK_EQ(parse(GOOD, "mbit=100,gen=7,copies=4,device_gib=12.5", &c), MP_OK);
    CHECK(c.server_count == 4 && c.gen == 7);
    for (uint32_t n = 0; n < 4; n++)
        CHECK(c.servers[n].mbit == 100 && c.servers[n].device_gib == 12.5);
    mp_cluster_fini(&c);
}

static void wrong_files_are_refused(void)
{
    static const struct {
        const char *text, *changes, *code, *says;
    } cases[] = {
        { "{", NULL, "E_JSON", "" },
        { "[]", NULL, "E_CLUSTER", "need an object" },
        { "{}", NULL, "E_JSON_KEY", "requests" },
        { "{ " TOP REST "\"speed\": 1, " SERVERS " }", NULL, "E_CLUSTER", "unknown key 'speed'" },
        { "{ " TOP REST SERVERS ", \"gen\": 3 }", NULL, "E_JSON_DUP", "gen" },
        { "{ " TOP SERVERS " }", NULL, "E_JSON_KEY", "latency_us" },
        { "{ " TOP REST "\"domains\": 0, " SERVERS " }", NULL, "E_JSON_RANGE", "domains" },
        { "{ " TOP REST "\"domains\": 1.5, " SERVERS " }", NULL, "E_CLUSTER", "'domains'" },
        { "{ " TOP REST "\"skew\": \"1\", " SERVERS " }", NULL, "E_JSON_TYPE", "skew" },
        { "{ " TOP REST "\"skew\": -1, " SERVERS " }", NULL, "E_JSON_RANGE", "skew" },
        { "{ " TOP REST "\"servers\": [] }", NULL, "E_CLUSTER", "1 to 1024 entries" },
        { "{ " TOP REST "\"servers\": {} }", NULL, "E_JSON_TYPE", "servers" },
        { "{ " TOP REST "\"servers\": [5] }", NULL, "E_CLUSTER", "no object" },
        { "{ " TOP REST "\"servers\": [{ " SERVER ", \"gpu\": 1 }] }", NULL, "E_CLUSTER", "'gpu'" },
        { "{ " TOP REST "\"servers\": [{ " SERVER ", \"devices\": 65 }] }", NULL, "E_JSON_RANGE",
          "devices" },
        { "{ " TOP REST "\"servers\": [{ " SERVER ", \"domain\": 1 }] }", NULL, "E_JSON_RANGE",
          "domain" },
        { "{ " TOP REST "\"servers\": [{ " SERVER ", \"reads\": 1 }] }", NULL, "E_JSON_TYPE",
          "reads" },
        { "{ " TOP REST "\"servers\": [{ \"machine\": \"h201\", \"device_gib\": 30, \"mbit\": 500, "
          "\"arrival_s\": 10 }] }",
          NULL, "E_DESCRIPTION", "h201" },
        { "{ " TOP REST "\"servers\": [{ " SERVER ", \"count\": 1000, \"devices\": 64 }] }", NULL,
          "E_CLUSTER", "64000 devices" },
        { GOOD, "copies=1025", "E_CLUSTER", "out of range" },
        { GOOD, "speed=3", "E_CLUSTER", "unknown key 'speed'" },
        { GOOD, "gen", "E_CLUSTER", "need KEY=NUMBER" },
        { GOOD, "gen=1.5", "E_CLUSTER", "'gen'" },
        { GOOD, "gen=many", "E_CLUSTER", "out of range" },
        { GOOD, "mbit=0", "E_CLUSTER", "out of range" },
    };
    struct mp_cluster c;

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const enum mp_status status = parse(cases[i].text, cases[i].changes, &c);

        if (status == MP_OK || strcmp(mp_error_last()->code, cases[i].code) != 0 ||
            strstr(mp_error_last()->text, cases[i].says) == NULL) {
            fprintf(stderr, "case %zu: %s: %s\n", i, mp_error_last()->code, mp_error_last()->text);
            exit(1);
        }
    }
    CHECK_EQ(mp_cluster_read("/none/such", NULL, &c), MP_ERR_MODEL);
    mp_error_clear();
}

/* Any file cut short is refused, whatever is left of it. */
static void cut_files_are_refused(void)
{
    struct mp_cluster c;

    for (size_t bytes = 0; bytes < strlen(GOOD); bytes++)
        CHECK(mp_cluster_parse("c", GOOD, bytes, NULL, &c) != MP_OK);
    mp_error_clear();
}

static void every_allocation_fails_once(void)
{
    struct mp_cluster c;
    uint64_t n = 0;

    for (;; n++) {
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = parse(with_shares(32, "1"), "gen=3", &c);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK(status != MP_OK);
    }
    CHECK(n >= 4); /* shares, listed servers, their counts, all servers; jansson has its own */
    mp_cluster_fini(&c);
}

int main(void)
{
    mp_test_drop_log();
    RUN(a_file_is_read_with_its_defaults);
    RUN(shares_are_read);
    RUN(slots_are_what_the_weights_leave);
    RUN(changes_replace_numbers);
    RUN(wrong_files_are_refused);
    RUN(cut_files_are_refused);
    RUN(every_allocation_fails_once);
    return 0;
}
