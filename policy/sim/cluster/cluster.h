#ifndef MP_CLUSTER_H
#define MP_CLUSTER_H

#include <signal.h>
#include <stdint.h>

#include "policy/place/place.h"
#include "policy/sim/sim_machine.h"

/*
 * Several servers on a virtual clock: each has devices, a link of its own, and users whose requests
 * it computes one after the other with all weights but the experts it lacks. Placements are those
 * of policy/place; which experts a token chooses is made up. docs/simulate.md says what is modelled
 * and lists the keys of a cluster file.
 *
 * One thread; the same configuration gives the same result to the last bit. Different runs may go
 * on at the same time: they only read the description.
 */
#define MP_CLUSTER_DEVICES_MAX 4096u

struct mp_cluster_server {
    struct mp_sim_machine machine;
    uint32_t devices;
    uint32_t domain;   /* of its users' texts */
    uint32_t reads;    /* 1: has the experts in host memory, or on a disk that `machine` has */
    double device_gib; /* of each device, for weights */
    double mbit;       /* of its link, each way */
    double arrival_s;  /* mean time between requests */
};

struct mp_cluster {
    struct mp_sim_model model;
    uint32_t server_count;
    struct mp_cluster_server *servers;

    /* Numbers of the file; whole ones as well. docs/simulate.md lists them. */
    double requests, prompt, gen;
    double latency_us, call_us;
    double send_us, take_us, serve_us; /* of a device, for a call: asking, the reply, answering */
    double row_us;                     /* of a device, for each row that it sends or gets */
    double read_us;      /* that a layer waits for what it reads, beside the reads themselves */
    double way_us;       /* of a processor of `processors`, for each message on its way */
    double wake_us;      /* for each other server that computes, until one that has read goes on */
    double load_work_us; /* of one of them, for each expert that is read */
    double processors;   /* of one host, whose processes all devices are; 0: of their own */
    double value_bytes;  /* of each of a row's values on a link */
    double head_bytes;   /* of each message, beside its rows */
    double once_bytes;   /* of a longer message so many leave before it was found; 0: all */
    double burst_bytes;  /* of a link, which it passes on at once after it was idle */
    double rows_once;    /* 1: a token's row goes once to a server, however many experts it needs */
    double domains, skew, common, variation, known, shift_after;
    double epoch_s, horizon_s;
    double restarts; /* of ranks that have died: real ones only */
    double copies;

    /* How often each expert is drawn, against the others of its layer; or NULL: made up.
     * (2 * domains, layers, experts): the second half is that of texts after the shift. */
    double *shares;
};

/*
 * Read a description. `changes`, or NULL: "key=number,..." in place of the file's numbers; mbit,
 * arrival_s and device_gib then hold for all servers.
 *
 * MP_ERR_CONFIG E_CLUSTER: an unknown key, a number out of range, too many devices; other errors as
 * of mp_json_load_file() and mp_sim_machine_read(). Nothing is kept on failure.
 */
enum mp_status mp_cluster_read(const char *path, const char *changes,
                               struct mp_cluster *cluster) MP_MUST_CHECK;
/* The same from text; `name` is for messages. */
enum mp_status mp_cluster_parse(const char *name, const char *text, size_t bytes,
                                const char *changes, struct mp_cluster *cluster) MP_MUST_CHECK;
void mp_cluster_fini(struct mp_cluster *cluster);

/* Experts that one device of the server can keep, without the slot that takes what is read. */
uint32_t mp_cluster_slots(const struct mp_cluster *cluster, uint32_t server);

/* Requests as they were recorded: what each token chose. A batch is the tokens that go through the
 * layers together; a prompt is one of them or several. */
struct mp_cluster_batch {
    uint64_t first_row; /* in chosen[], where it has a row for each layer and token */
    uint32_t tokens;
};

struct mp_cluster_routing {
    uint32_t layers, experts, top_k;
    uint32_t requests, batches, tokens_max; /* tokens_max: of one batch */
    uint32_t *first_batch;                  // (requests + 1)
    struct mp_cluster_batch *batch;         // (batches)
    uint32_t *chosen;                       // (rows, top_k)
};

/* Read a trace of requests that were run one after the other. MP_ERR_CONFIG E_CLUSTER: something
 * else is in it; other errors as of policy/record/trace.h. Nothing is kept on failure. */
enum mp_status mp_cluster_routing_read(const char *path,
                                       struct mp_cluster_routing *routing) MP_MUST_CHECK;
void mp_cluster_routing_fini(struct mp_cluster_routing *routing);

struct mp_cluster_result {
    double mean_s, p95_s; /* from arrival to the last token */
    double end_s;         /* when the last request was done */
    uint64_t requests;
    uint64_t chosen;         /* pairs of token and expert */
    double local_share;      /* of the pairs of token and expert: computed on the user's server */
    double local_share_2;    /* the same of the second half of each server's requests */
    double busy_share;       /* of the servers' time: a request is being computed */
    uint64_t sent_bytes;     /* of rows, there and back */
    uint64_t reads, moved;   /* experts read for one use; requests that were redirected */
    uint64_t reading_layers; /* that read at least one */
    uint64_t fetched;        /* experts out of other servers' memory */
    uint64_t messages;       /* of rows, there and back */
    double work_s;           /* of devices, and of processors for them */
    uint64_t filled;         /* experts that ranks read in the background */
    uint32_t migrations;
    double copied;         /* experts that arrived by migration */
    double kept;           /* copies of the final placement */
    double *server_mean_s; /* (servers): of the requests of its users */
};

struct mp_cluster_config {
    const struct mp_cluster *cluster;
    const struct mp_place_ops *place;
    uint64_t seed;
    const double *arrivals; // (servers, requests): s, ascending; or NULL: drawn from `arrival_s`
    /* What tokens choose, and how many there are; or NULL: drawn. `recorded` is the number there of
     * each request. */
    const struct mp_cluster_routing *routing;
    const uint32_t *recorded;            // (servers, requests)
    const volatile sig_atomic_t *cancel; /* or NULL; not 0: end with MP_ERR_CANCELED */
    bool check; /* for tests: every placement in use is checked, and every row comes back once */
};

/* MP_ERR_CONFIG: E_PLACE_ROOM, or E_CLUSTER if a device has no room for what every server needs.
 * On success free the result with mp_cluster_result_fini(). */
enum mp_status mp_cluster_run(const struct mp_cluster_config *config,
                              struct mp_cluster_result *result) MP_MUST_CHECK;
void mp_cluster_result_fini(struct mp_cluster_result *result);

#endif
