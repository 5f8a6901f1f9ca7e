/*
 * The parent's side of the probe: runs measuring children, parses their output, and stores the
 * results in a file.
 *
 * A child's lines are "begin STEP", "KEY VALUE" and "failed STEP: why". If a child ends before its
 * last line, "end", the step that it had begun is blamed, and the next child skips it.
 */
#include "engine/probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/probe/probe_int.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"
#include "vmm/format/json.h"
#include "vmm/output/out.h"

#define QUIET_MS 30000
#define CHILDREN_MAX 8
#define CACHE_BYTES_MAX 65536
#define FORMAT "moepager probe 3" /* 3: of lists of experts, in their own types */
#define NAME_BYTES 192

extern char **environ;

static const struct {
    const char *key, *unit, *what;
} items[MP_PROBE_COUNT] = {
#define X(NAME, key, unit, what) { key, unit, what },
    MP_PROBE_MAP(X)
#undef X
};

const char *mp_probe_key(enum mp_probe_item item)
{
    return items[item].key;
}

enum mp_probe_item mp_probe_find(const char *key, size_t bytes)
{
    unsigned i = 0;

    while (i < MP_PROBE_COUNT &&
           (strlen(items[i].key) != bytes || memcmp(items[i].key, key, bytes) != 0))
        i++;
    return (enum mp_probe_item)i;
}

static void clear(struct mp_probe *probe, const struct mp_probe_shape *shape)
{
    memset(probe, 0, sizeof(*probe));
    probe->shape = *shape;
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        probe->value[i] = NAN;
}

/* Without a frame nothing else is measured, which is not worth keeping. */
static bool has_values(const struct mp_probe *probe)
{
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++) {
        if (i == MP_PROBE_HOST_NUMA && probe->shape.hidden > 0)
            continue;
        if (!isnan(probe->value[i]))
            return true;
    }
    return false;
}

static void add_trouble(struct mp_probe *probe, const char *text)
{
    const size_t used = strlen(probe->trouble);

    snprintf(probe->trouble + used, sizeof(probe->trouble) - used, "%s%s", used > 0 ? "; " : "",
             text);
}

/* One child that runs. */
struct child {
    pid_t pid;
    int fd;
    char line[512];
    size_t used;
    char step[32]; /* begun last */
    bool ended;    /* said so */
};

/* One whole line of a child. What does not look like one of ours is skipped. */
static void take_line(struct child *child, struct mp_probe *probe)
{
    char *space = strchr(child->line, ' '), *end;
    enum mp_probe_item item;
    double value;

    if (!strcmp(child->line, "end"))
        child->ended = true;
    if (space == NULL)
        return;
    if (!strncmp(child->line, "begin ", 6)) {
        snprintf(child->step, sizeof(child->step), "%s", child->line + 6);
    } else if (!strncmp(child->line, "failed ", 7)) {
        add_trouble(probe, child->line + 7);
    } else {
        item = mp_probe_find(child->line, (size_t)(space - child->line));
        value = strtod(space + 1, &end);
        if (item < MP_PROBE_COUNT && end != space + 1 && isfinite(value) && value >= 0)
            probe->value[item] = value;
    }
}

/* Read what the child prints until it ends; false: it was silent for too long. */
static bool listen_to(struct child *child, struct mp_probe *probe)
{
    struct pollfd wait = { .fd = child->fd, .events = POLLIN };

    for (;;) {
        const int ready = poll(&wait, 1, QUIET_MS);
        char byte;

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        /* Byte by byte: there are some hundred of them. */
        if (read(child->fd, &byte, 1) != 1)
            return true;
        if (byte != '\n') {
            if (child->used + 1 < sizeof(child->line))
                child->line[child->used++] = byte;
            continue;
        }
        child->line[child->used] = '\0';
        child->used = 0;
        take_line(child, probe);
    }
}

static enum mp_status start(const char *argv0, unsigned ordinal, const struct mp_probe_shape *shape,
                            const char *skip, struct child *child)
{
    char device[16], hidden[16], channels[16], experts[16], types[48];
    char *const argv[] = { (char *)"moepager",
                           (char *)"probe",
                           (char *)"--child",
                           (char *)"--device",
                           device,
                           (char *)"--hidden",
                           hidden,
                           (char *)"--channels",
                           channels,
                           (char *)"--experts",
                           experts,
                           (char *)"--types",
                           types,
                           (char *)"--skip",
                           (char *)skip,
                           NULL };
    posix_spawn_file_actions_t actions;
    int pipe_fds[2], error;

    snprintf(device, sizeof(device), "cuda:%u", ordinal);
    /* Without experts any will do. */
    snprintf(hidden, sizeof(hidden), "%" PRIu32, shape->hidden != 0 ? shape->hidden : 1);
    snprintf(channels, sizeof(channels), "%" PRIu32, shape->channels != 0 ? shape->channels : 1);
    snprintf(experts, sizeof(experts), "%" PRIu32, shape->experts != 0 ? shape->experts : 1);
    snprintf(types, sizeof(types), "%s,%s", mp_wtype_name(shape->gate), mp_wtype_name(shape->down));
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return mp_fail(MP_ERR_IO, "E_PROBE", "cannot measure the device: no pipe: %s",
                       strerror(errno));
    error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
        /* A run that tries something first goes on to say itself what is wrong. */
        if (error == 0 && shape->hidden == 0)
            error = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
        if (error == 0)
            error = posix_spawn(&child->pid, argv0, &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pipe_fds[1]);
    if (error != 0) {
        close(pipe_fds[0]);
        return mp_fail(MP_ERR_IO, "E_PROBE", "cannot measure the device: '%s' does not start: %s",
                       argv0, strerror(error));
    }
    child->fd = pipe_fds[0];
    return MP_OK;
}

/* How the child ended, in words; "" if it ended well. */
static void finish(struct child *child, bool hung, char *text, size_t bytes)
{
    int status = 0;

    if (hung)
        kill(child->pid, SIGKILL);
    close(child->fd);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    text[0] = '\0';
    if (hung)
        snprintf(text, bytes, "%s: nothing happened for %d s", child->step, QUIET_MS / 1000);
    else if (WIFSIGNALED(status))
        snprintf(text, bytes, "%s: crashed with signal %d", child->step, WTERMSIG(status));
    else if (!child->ended)
        snprintf(text, bytes, "%s: ended with exit code %d", child->step, WEXITSTATUS(status));
}

static enum mp_status begin(unsigned ordinal, const struct mp_probe_shape *shape,
                            struct mp_probe *probe)
{
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK && ordinal >= cuda->devices)
        status = mp_fail(MP_ERR_CONFIG, "E_CUDA_DEVICE",
                         "there is no CUDA device %u; the driver sees %u", ordinal, cuda->devices);
    if (status == MP_OK)
        status = mp_cuda_describe(cuda, ordinal, &device);
    if (status != MP_OK)
        return status;
    clear(probe, shape);
    snprintf(probe->device, sizeof(probe->device), "%s", device.name);
    snprintf(probe->uuid, sizeof(probe->uuid), "%s", device.uuid);
    probe->driver = cuda->version;
    return MP_OK;
}

/* One child, that does what is not in `skip`. *again_p: it broke down, and another one that leaves
 * out child->step, too, may get further. */
static enum mp_status run_child(const char *argv0, unsigned ordinal, const char *skip,
                                struct child *child, struct mp_probe *probe, bool *again_p)
{
    char why[128];
    bool alive;
    enum mp_status status = start(argv0, ordinal, &probe->shape, skip, child);

    *again_p = false;
    if (status != MP_OK)
        return status;
    alive = listen_to(child, probe);
    finish(child, !alive, why, sizeof(why));
    if (why[0] == '\0')
        return MP_OK;
    if (child->step[0] == '\0')
        return mp_fail(MP_ERR_DEVICE, "E_PROBE",
                       "cannot measure device '%s': the measuring process%s", probe->device, why);
    add_trouble(probe, why);
    if (!strcmp(child->step, MP_PROBE_STEP_HOST_NUMA))
        probe->value[MP_PROBE_HOST_NUMA] = MP_HOST_NUMA_BREAKS;
    *again_p = strcmp(child->step, "open") != 0; /* without which there are no steps to leave out */
    return MP_OK;
}

static enum mp_status found(const struct mp_probe *probe)
{
    /* Nothing is worth keeping: what was in the way may be gone the next time. */
    if (!has_values(probe))
        return mp_fail(MP_ERR_DEVICE, "E_PROBE", "cannot measure device '%s': %s", probe->device,
                       probe->trouble);
    return MP_OK;
}

enum mp_status mp_probe_run(const char *argv0, unsigned ordinal, const struct mp_probe_shape *shape,
                            struct mp_probe *probe)
{
    char skip[256] = "none";
    enum mp_status status = begin(ordinal, shape, probe);
    bool again = true;

    for (unsigned run = 0; run < CHILDREN_MAX && status == MP_OK && again; run++) {
        struct child child = { .fd = -1 };
        const size_t used = strlen(skip);

        status = run_child(argv0, ordinal, skip, &child, probe, &again);
        snprintf(skip + used, sizeof(skip) - used, ",%s", child.step);
    }
    return status == MP_OK ? found(probe) : status;
}

enum mp_status mp_probe_run_host_numa(const char *argv0, unsigned ordinal, struct mp_probe *probe)
{
    const struct mp_probe_shape none = { .hidden = 0 };
    struct child child = { .fd = -1 };
    enum mp_status status = begin(ordinal, &none, probe);
    bool again;

    if (status == MP_OK)
        status = run_child(argv0, ordinal, "rest", &child, probe, &again);
    return status == MP_OK ? found(probe) : status;
}

/* The cache's directory, opened; -1: there is none. Makes .cache/moepager where it is missing. */
static int open_cache(const char *setting, bool make)
{
    struct passwd entry, *found = NULL;
    char text[4096], path[4096 + 32];

    if (!strcmp(setting, "none"))
        return -1;
    if (strcmp(setting, "auto") != 0)
        return open(setting, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (getpwuid_r(getuid(), &entry, text, sizeof(text), &found) != 0 || found == NULL ||
        found->pw_dir[0] != '/')
        return -1;
    snprintf(path, sizeof(path), "%s/.cache", found->pw_dir);
    if (make)
        (void)mkdir(path, 0700);
    strncat(path, "/moepager", sizeof(path) - strlen(path) - 1);
    if (make)
        (void)mkdir(path, 0700);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static void name_of(const char *uuid, int driver, const struct mp_probe_shape *shape,
                    char name[NAME_BYTES])
{
    char clean[64], experts[64] = "";
    size_t used = 0;

    for (; *uuid != '\0' && used + 1 < sizeof(clean); uuid++)
        clean[used++] = (*uuid >= '0' && *uuid <= '9') || (*uuid >= 'a' && *uuid <= 'z') ||
                                (*uuid >= 'A' && *uuid <= 'Z')
                            ? *uuid
                            : '-';
    clean[used] = '\0';
    if (shape->hidden != 0)
        snprintf(experts, sizeof(experts), "-%s-%s-%" PRIu32, mp_wtype_name(shape->gate),
                 mp_wtype_name(shape->down), shape->experts);
    snprintf(name, NAME_BYTES, "probe-%s-%d-%" PRIu32 "x%" PRIu32 "%s.json", clean, driver,
             shape->hidden, shape->channels, experts);
}

/* Fill the probe from the text of a file; an error says that it is none of ours. */
static enum mp_status read_values(const json_t *root, const char *name, struct mp_probe *probe)
{
    const char *format, *device, *trouble;
    json_t *values;
    enum mp_status status = mp_json_string(root, "format", name, &format);

    if (status == MP_OK && strcmp(format, FORMAT) != 0)
        status = mp_fail(MP_ERR_MODEL, "E_PROBE", "'%s' is not of this version", name);
    if (status == MP_OK)
        status = mp_json_string(root, "device", name, &device);
    if (status == MP_OK)
        status = mp_json_string_or(root, "trouble", name, "", &trouble);
    if (status == MP_OK)
        status = mp_json_object(root, "values", name, &values);
    for (unsigned i = 0; i < MP_PROBE_COUNT && status == MP_OK; i++) {
        if (json_is_number(json_object_get(values, items[i].key)))
            status = mp_json_double(values, items[i].key, name, 0, 1e15, &probe->value[i]);
    }
    if (status != MP_OK)
        return status;
    snprintf(probe->device, sizeof(probe->device), "%s", device);
    snprintf(probe->trouble, sizeof(probe->trouble), "%s", trouble);
    return MP_OK;
}

bool mp_probe_load(const char *cache_dir, const char *uuid, int driver,
                   const struct mp_probe_shape *shape, struct mp_probe *probe)
{
    const int dir = open_cache(cache_dir, false);
    json_t *root = NULL;
    char name[NAME_BYTES];
    bool ok = false;

    if (dir < 0)
        return false;
    clear(probe, shape);
    name_of(uuid, driver, shape, name);
    snprintf(probe->uuid, sizeof(probe->uuid), "%s", uuid);
    probe->driver = driver;
    if (mp_json_load_optional_file(dir, name, CACHE_BYTES_MAX, &root) == MP_OK && root != NULL)
        ok = read_values(root, name, probe) == MP_OK;
    json_decref(root);
    close(dir);
    mp_error_clear();
    return ok;
}

static void put_values(const struct mp_probe *probe, struct mp_json_out *json)
{
    mp_json_put_string(json, "device", probe->device);
    mp_json_put_string(json, "uuid", probe->uuid);
    mp_json_put_i64(json, "driver", probe->driver);
    mp_json_put_u64(json, "hidden", probe->shape.hidden);
    mp_json_put_u64(json, "channels", probe->shape.channels);
    mp_json_put_u64(json, "experts", probe->shape.experts);
    mp_json_put_string(json, "gate", mp_wtype_name(probe->shape.gate));
    mp_json_put_string(json, "down", mp_wtype_name(probe->shape.down));
    mp_json_put_string(json, "trouble", probe->trouble);
    mp_json_object_begin(json, "values");
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        mp_json_put_f64(json, items[i].key, probe->value[i]);
    mp_json_object_end(json);
}

static bool store(const char *cache_dir, const struct mp_probe *probe)
{
    const int dir = open_cache(cache_dir, true);
    struct mp_json_out json;
    char name[NAME_BYTES], path[NAME_BYTES + 64];
    struct mp_out out;
    bool ok;

    if (dir < 0)
        return false;
    name_of(probe->uuid, probe->driver, &probe->shape, name);
    snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir, name);
    ok = mp_out_open(&out, path) == MP_OK;
    if (ok) {
        mp_json_begin(&json, out.file, true);
        mp_json_object_begin(&json, NULL);
        mp_json_put_string(&json, "format", FORMAT);
        put_values(probe, &json);
        mp_json_object_end(&json);
        mp_json_end(&json);
        ok = mp_out_commit(&out) == MP_OK;
    }
    close(dir);
    mp_error_clear();
    return ok;
}

bool mp_probe_store(const char *cache_dir, const struct mp_probe *probe)
{
    const struct mp_probe_shape none = { .hidden = 0 };
    struct mp_probe numa;

    if (probe->shape.hidden > 0 && !isnan(probe->value[MP_PROBE_HOST_NUMA])) {
        clear(&numa, &none);
        memcpy(numa.device, probe->device, sizeof(numa.device));
        memcpy(numa.uuid, probe->uuid, sizeof(numa.uuid));
        memcpy(numa.trouble, probe->trouble, sizeof(numa.trouble));
        numa.driver = probe->driver;
        numa.value[MP_PROBE_HOST_NUMA] = probe->value[MP_PROBE_HOST_NUMA];
        if (!store(cache_dir, &numa))
            return false;
    }
    return store(cache_dir, probe);
}

void mp_probe_json(const struct mp_probe *probe, struct mp_json_out *json)
{
    mp_json_object_begin(json, NULL);
    put_values(probe, json);
    mp_json_object_end(json);
}

void mp_probe_print(const struct mp_probe *probe, FILE *out)
{
    fprintf(out,
            "device          %s, driver %d.%d\nexpert          hidden %" PRIu32 ", %" PRIu32
            " channels, gate and up %s, down %s, lists of %" PRIu32 "\n",
            probe->device, probe->driver / 1000, probe->driver % 1000 / 10, probe->shape.hidden,
            probe->shape.channels, mp_wtype_name(probe->shape.gate),
            mp_wtype_name(probe->shape.down), probe->shape.experts);
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++) {
        if (isnan(probe->value[i]))
            fprintf(out, "%-15s        -       %s\n", items[i].key, items[i].what);
        else
            fprintf(out, "%-15s %10.2f %-5s %s\n", items[i].key, probe->value[i], items[i].unit,
                    items[i].what);
    }
    if (probe->trouble[0] != '\0')
        fprintf(out, "trouble         %s\n", probe->trouble);
}
