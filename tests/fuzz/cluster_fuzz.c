/*
 * A cluster file, and behind a NUL byte changes to its numbers. What is accepted keeps the ranges
 * that the simulator relies on; what is refused has a code and a printable text.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/sim/cluster/cluster.h"
#include "tests/fuzz/text.h"
#include "vmm/base/error.h"

static void check_cluster(const struct mp_cluster *c)
{
    const size_t shares = (size_t)(2 * c->domains * c->model.layers * c->model.experts);
    uint64_t devices = 0;

    FUZZ_CHECK(c->server_count >= 1 && c->server_count <= MP_PLACE_SERVERS_MAX);
    FUZZ_CHECK(c->model.layers >= 1 && c->model.experts >= 1);
    FUZZ_CHECK(c->requests >= 1 && c->requests == floor(c->requests));
    FUZZ_CHECK(c->prompt >= 1 && c->prompt <= 1e6 && c->gen >= 1 && c->gen <= 1e5);
    FUZZ_CHECK(c->latency_us >= 0 && c->call_us >= 0);
    FUZZ_CHECK(c->domains >= 1 && c->domains <= 256);
    FUZZ_CHECK(c->known >= 0 && c->known <= 1 && c->common >= 0 && c->common <= 1);
    FUZZ_CHECK(c->variation >= 0 && c->variation <= 1 && isfinite(c->skew));
    FUZZ_CHECK(c->head_bytes >= 0 && c->head_bytes <= 1e6);
    for (size_t i = 0; c->shares != NULL && i < shares; i++)
        FUZZ_CHECK(c->shares[i] > 0 && c->shares[i] <= 1e6);
    for (uint32_t n = 0; n < c->server_count; n++) {
        const struct mp_cluster_server *server = &c->servers[n];

        FUZZ_CHECK(server->devices >= 1 && server->domain < c->domains);
        FUZZ_CHECK(server->mbit > 0 && server->arrival_s > 0 && server->device_gib > 0);
        FUZZ_CHECK(server->machine.device_gbps > 0);
        FUZZ_CHECK(mp_cluster_slots(c, n) <= 1u << 24);
        devices += server->devices;
    }
    FUZZ_CHECK(devices <= MP_CLUSTER_DEVICES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t text_bytes = nul != NULL ? (size_t)(nul - data) : bytes;
    char *changes = nul != NULL ? strndup((const char *)nul + 1, bytes - text_bytes - 1) : NULL;
    struct mp_cluster cluster;

    mp_error_clear();
    if (mp_cluster_parse("fuzz", (const char *)data, text_bytes, changes, &cluster) == MP_OK) {
        check_cluster(&cluster);
        mp_cluster_fini(&cluster);
    } else {
        FUZZ_CHECK(mp_error_last()->code[0] == 'E' && mp_error_last()->text[0] != '\0');
        fuzz_check_message(mp_error_last()->text);
    }
    free(changes);
    return 0;
}
