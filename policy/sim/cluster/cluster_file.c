/*
 * Cluster files: JSON, read strictly. An unknown key is an error, so that a misspelt one does not
 * pass for its default.
 */
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/sim/cluster/cluster.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/format/json.h"
#include "vmm/options/opt.h"

#define FILE_BYTES_MAX (1u << 20)

struct key {
    const char *name;
    size_t offset;
    double min, max, dfl;
    bool whole;
};

#define REAL(type, field, min, max, dfl)                    \
    {                                                       \
#field, offsetof(type, field), min, max, dfl, false \
    }
#define WHOLE(type, field, min, max, dfl)                  \
    {                                                      \
#field, offsetof(type, field), min, max, dfl, true \
    }
#define NEEDED (-1.0)

static const struct key keys[] = {
    WHOLE(struct mp_cluster, requests, 1, 1e5, NEEDED),
    WHOLE(struct mp_cluster, prompt, 1, 1e6, NEEDED),
    WHOLE(struct mp_cluster, gen, 1, 1e5, NEEDED),
    REAL(struct mp_cluster, latency_us, 0, 1e7, NEEDED),
    REAL(struct mp_cluster, call_us, 0, 1e7, 0),
    REAL(struct mp_cluster, send_us, 0, 1e7, 0),
    REAL(struct mp_cluster, take_us, 0, 1e7, 0),
    REAL(struct mp_cluster, serve_us, 0, 1e7, 0),
    REAL(struct mp_cluster, row_us, 0, 1e7, 0),
    REAL(struct mp_cluster, read_us, 0, 1e7, 0),
    REAL(struct mp_cluster, way_us, 0, 1e7, 0),
    REAL(struct mp_cluster, wake_us, 0, 1e7, 0),
    REAL(struct mp_cluster, load_work_us, 0, 1e7, 0),
    WHOLE(struct mp_cluster, processors, 0, MP_CLUSTER_DEVICES_MAX, 0),
    REAL(struct mp_cluster, value_bytes, 0.25, 8, 2),
    REAL(struct mp_cluster, head_bytes, 0, 1e6, 0),
    REAL(struct mp_cluster, once_bytes, 0, 1e12, 0),
    REAL(struct mp_cluster, burst_bytes, 0, 1e12, 0),
    WHOLE(struct mp_cluster, rows_once, 0, 1, 0),
    WHOLE(struct mp_cluster, domains, 1, 256, 1),
    REAL(struct mp_cluster, skew, 0, 5, 1),
    REAL(struct mp_cluster, common, 0, 1, 0),
    REAL(struct mp_cluster, variation, 0, 1, 0),
    REAL(struct mp_cluster, known, -1, 1, 1),
    WHOLE(struct mp_cluster, shift_after, 0, 1e5, 0),
    REAL(struct mp_cluster, epoch_s, 0, 1e6, 300),
    REAL(struct mp_cluster, horizon_s, 0, 1e6, 300),
    WHOLE(struct mp_cluster, restarts, 0, 1e6, 0),
    WHOLE(struct mp_cluster, copies, 1, MP_PLACE_SERVERS_MAX, 1),
};

static const struct key server_keys[] = {
    REAL(struct mp_cluster_server, device_gib, 0.001, 1e6, NEEDED),
    REAL(struct mp_cluster_server, mbit, 0.001, 1e7, NEEDED),
    REAL(struct mp_cluster_server, arrival_s, 1e-6, 1e9, NEEDED),
};

/* Keys that are no doubles of the structs. */
static const char *const other_keys[] = { "model", "servers", "note", "shares" };
static const char *const other_server_keys[] = { "machine", "devices", "domain", "reads", "count" };

static enum mp_status bad(const char *name, const char *what, const char *word)
{
    char quoted[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_CLUSTER", "cluster '%s': %s '%s'",
                   mp_quote(file, name, strlen(name)), what, mp_quote(quoted, word, strlen(word)));
}

static const struct key *find(const struct key *table, size_t count, const char *word)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(table[i].name, word))
            return &table[i];
    }
    return NULL;
}

static enum mp_status check_keys(json_t *object, const char *name, const struct key *table,
                                 size_t count, const char *const *others, size_t other_count)
{
    const char *word;
    json_t *value;

    json_object_foreach(object, word, value)
    {
        size_t i = 0;

        while (i < other_count && strcmp(others[i], word) != 0)
            i++;
        if (i == other_count && find(table, count, word) == NULL)
            return bad(name, "unknown key", word);
    }
    return MP_OK;
}

static enum mp_status check_whole(const char *name, const struct key *key, double value)
{
    if (key->whole && value != floor(value))
        return bad(name, "not a whole number:", key->name);
    return MP_OK;
}

static enum mp_status read_numbers(json_t *object, const char *name, const struct key *table,
                                   size_t count, void *out)
{
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < count && status == MP_OK; i++) {
        const struct key *key = &table[i];
        double *value = (double *)((char *)out + key->offset);

        status = key->dfl < 0 ? mp_json_double(object, key->name, name, key->min, key->max, value)
                              : mp_json_double_or(object, key->name, name, key->min, key->max,
                                                  key->dfl, value);
        if (status == MP_OK)
            status = check_whole(name, key, *value);
    }
    return status;
}

static enum mp_status read_server(json_t *object, const char *name, uint32_t number,
                                  uint32_t domains, struct mp_cluster_server *server,
                                  uint64_t *count_p)
{
    const char *text = NULL;
    uint64_t devices = 0, domain = 0;
    bool reads = true;
    enum mp_status status;

    if (!json_is_object(object))
        return bad(name, "an entry is no object in", "servers");
    memset(server, 0, sizeof(*server));
    status = check_keys(object, name, server_keys, MP_ARRAY_LEN(server_keys), other_server_keys,
                        MP_ARRAY_LEN(other_server_keys));
    if (status == MP_OK)
        status = read_numbers(object, name, server_keys, MP_ARRAY_LEN(server_keys), server);
    if (status == MP_OK)
        status = mp_json_u64_or(object, "devices", name, 1, 64, 1, &devices);
    if (status == MP_OK)
        status = mp_json_u64_or(object, "domain", name, 0, domains - 1, number % domains, &domain);
    if (status == MP_OK)
        status = mp_json_u64_or(object, "count", name, 1, MP_PLACE_SERVERS_MAX, 1, count_p);
    if (status == MP_OK)
        status = mp_json_bool_or(object, "reads", name, true, &reads);
    if (status == MP_OK)
        status = mp_json_string(object, "machine", name, &text);
    if (status == MP_OK)
        status = mp_sim_machine_read(text, &server->machine);
    server->devices = (uint32_t)devices;
    server->domain = (uint32_t)domain;
    server->reads = reads;
    return status;
}

/* "key=number,..." over what the file says; of a server's numbers over those of `server`, which
 * may be NULL: then only the cluster's own are set. */
static enum mp_status change_one(const char *name, const char *part, struct mp_cluster *cluster,
                                 struct mp_cluster_server *servers, uint32_t count)
{
    const size_t bytes = strcspn(part, "=");
    const struct key *key, *own;
    struct mp_opt number = { .name = "number", .kind = MP_OPT_F64 };
    char word[64];
    double value;

    if (part[bytes] == '\0' || bytes >= sizeof(word))
        return bad(name, "need KEY=NUMBER, got", part);
    memcpy(word, part, bytes);
    word[bytes] = '\0';
    own = find(server_keys, MP_ARRAY_LEN(server_keys), word);
    key = own != NULL ? own : find(keys, MP_ARRAY_LEN(keys), word);
    if (key == NULL)
        return bad(name, "unknown key", word);
    number.f64_min = key->min;
    number.f64_max = key->max;
    if (!mp_opt_parse(&number, part + bytes + 1, &value))
        return bad(name, "out of range:", part);
    if (own == NULL)
        *(double *)((char *)cluster + key->offset) = value;
    for (uint32_t i = 0; own != NULL && i < count; i++)
        *(double *)((char *)&servers[i] + key->offset) = value;
    return check_whole(name, key, value);
}

static enum mp_status change(const char *name, const char *changes, struct mp_cluster *cluster,
                             struct mp_cluster_server *servers, uint32_t count)
{
    enum mp_status status = MP_OK;

    while (changes != NULL && *changes != '\0' && status == MP_OK) {
        const size_t bytes = strcspn(changes, ",");
        char part[128];

        if (bytes >= sizeof(part))
            return bad(name, "a change is too long:", changes);
        memcpy(part, changes, bytes);
        part[bytes] = '\0';
        status = change_one(name, part, cluster, servers, count);
        changes += bytes + (changes[bytes] == ',');
    }
    return status;
}

/* servers[] := every server of the list `count` times over, all of that `copies` times. */
static enum mp_status spread(const char *name, struct mp_cluster *cluster,
                             const struct mp_cluster_server *listed, const uint64_t *counts,
                             size_t listed_count)
{
    uint64_t servers = 0, devices = 0;
    const double experts = cluster->model.layers * cluster->model.experts;
    uint32_t at = 0;

    for (size_t i = 0; i < listed_count; i++) {
        servers += counts[i] * (uint64_t)cluster->copies;
        devices += counts[i] * (uint64_t)cluster->copies * listed[i].devices;
    }
    if (servers > MP_PLACE_SERVERS_MAX || devices > MP_CLUSTER_DEVICES_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_CLUSTER",
                       "%llu servers with %llu devices, at most %u and %u are supported",
                       (unsigned long long)servers, (unsigned long long)devices,
                       MP_PLACE_SERVERS_MAX, MP_CLUSTER_DEVICES_MAX);
    if ((double)servers * experts > (1u << 28))
        return bad(name, "more than 2^28 experts of all servers:", cluster->model.name);
    cluster->servers = calloc(servers, sizeof(*cluster->servers));
    if (cluster->servers == NULL)
        return mp_fail_no_memory("servers", servers * sizeof(*cluster->servers));
    for (uint32_t c = 0; c < (uint32_t)cluster->copies; c++) {
        for (size_t i = 0; i < listed_count; i++) {
            for (uint64_t k = 0; k < counts[i]; k++)
                cluster->servers[at++] = listed[i];
        }
    }
    cluster->server_count = at;
    return MP_OK;
}

static enum mp_status read_servers(json_t *root, const char *name, const char *changes,
                                   struct mp_cluster *cluster)
{
    struct mp_cluster_server *listed;
    uint64_t *counts;
    json_t *array;
    size_t count;
    enum mp_status status = mp_json_array(root, "servers", name, &array);

    if (status != MP_OK)
        return status;
    count = json_array_size(array);
    if (count == 0 || count > MP_PLACE_SERVERS_MAX)
        return bad(name, "need 1 to 1024 entries in", "servers");
    listed = calloc(count, sizeof(*listed));
    counts = calloc(count, sizeof(*counts));
    if (listed == NULL || counts == NULL)
        status = mp_fail_no_memory("servers", count * (sizeof(*listed) + sizeof(*counts)));
    for (size_t i = 0; i < count && status == MP_OK; i++)
        status = read_server(json_array_get(array, i), name, (uint32_t)i,
                             (uint32_t)cluster->domains, &listed[i], &counts[i]);
    if (status == MP_OK)
        status = change(name, changes, cluster, listed, (uint32_t)count);
    if (status == MP_OK)
        status = spread(name, cluster, listed, counts, count);
    free(counts);
    free(listed);
    return status;
}

/* Into *at, which moves on; with at NULL they are only checked, before memory is taken. */
static enum mp_status read_shares_of(json_t *array, const char *name, uint32_t depth,
                                     const size_t *counts, double **at)
{
    enum mp_status status = MP_OK;

    if (!json_is_array(array) || json_array_size(array) != counts[0])
        return bad(name, "need [2 * domains][layers][experts] in", "shares");
    for (size_t i = 0; i < counts[0] && status == MP_OK; i++) {
        json_t *value = json_array_get(array, i);

        if (depth > 0) {
            status = read_shares_of(value, name, depth - 1, counts + 1, at);
            continue;
        }
        if (!json_is_number(value) || !(json_number_value(value) > 0) ||
            json_number_value(value) > 1e6)
            return bad(name, "need numbers above 0, at most 10^6, in", "shares");
        if (at != NULL)
            *(*at)++ = json_number_value(value);
    }
    return status;
}

static enum mp_status read_shares(json_t *root, const char *name, struct mp_cluster *cluster)
{
    const size_t counts[] = { 2 * (size_t)cluster->domains, (size_t)cluster->model.layers,
                              (size_t)cluster->model.experts };
    json_t *array = json_object_get(root, "shares");
    enum mp_status status;
    double *at;

    if (array == NULL)
        return MP_OK;
    status = read_shares_of(array, name, 2, counts, NULL);
    if (status != MP_OK)
        return status;
    cluster->shares = calloc(counts[0] * counts[1] * counts[2], sizeof(*cluster->shares));
    if (cluster->shares == NULL)
        return mp_fail_no_memory("shares", counts[0] * counts[1] * counts[2] * sizeof(double));
    at = cluster->shares;
    return read_shares_of(array, name, 2, counts, &at);
}

static enum mp_status read_root(json_t *root, const char *name, const char *changes,
                                struct mp_cluster *cluster)
{
    const char *model = NULL;
    enum mp_status status;

    memset(cluster, 0, sizeof(*cluster));
    if (!json_is_object(root))
        return bad(name, "need an object, got", "an array");
    status = check_keys(root, name, keys, MP_ARRAY_LEN(keys), other_keys, MP_ARRAY_LEN(other_keys));
    if (status == MP_OK)
        status = read_numbers(root, name, keys, MP_ARRAY_LEN(keys), cluster);
    if (status == MP_OK) /* before servers are read: `domains` counts there */
        status = change(name, changes, cluster, NULL, 0);
    if (status == MP_OK)
        status = mp_json_string(root, "model", name, &model);
    if (status == MP_OK)
        status = mp_sim_model_read(model, &cluster->model);
    if (status == MP_OK)
        status = read_shares(root, name, cluster);
    if (status == MP_OK)
        status = read_servers(root, name, changes, cluster);
    if (status != MP_OK)
        mp_cluster_fini(cluster);
    return status;
}

enum mp_status mp_cluster_parse(const char *name, const char *text, size_t bytes,
                                const char *changes, struct mp_cluster *cluster)
{
    json_t *root = NULL;
    enum mp_status status = mp_json_parse(text, bytes, name, &root);

    if (status != MP_OK)
        return status;
    status = read_root(root, name, changes, cluster);
    json_decref(root);
    return status;
}

enum mp_status mp_cluster_read(const char *path, const char *changes, struct mp_cluster *cluster)
{
    json_t *root = NULL;
    enum mp_status status = mp_json_load_file(AT_FDCWD, path, FILE_BYTES_MAX, &root);

    if (status != MP_OK)
        return status;
    status = read_root(root, path, changes, cluster);
    json_decref(root);
    return status;
}

void mp_cluster_fini(struct mp_cluster *cluster)
{
    free(cluster->servers);
    free(cluster->shares);
    cluster->servers = NULL;
    cluster->shares = NULL;
    cluster->server_count = 0;
}

uint32_t mp_cluster_slots(const struct mp_cluster *cluster, uint32_t server)
{
    const double bytes = cluster->servers[server].device_gib * 1073741824.0 -
                         (double)mp_sim_other_bytes(&cluster->model);
    const double slots = floor(bytes / (double)mp_sim_expert_bytes(&cluster->model)) - 1;

    if (slots < 0)
        return 0;
    return slots < 16777216 ? (uint32_t)slots : 16777216;
}
