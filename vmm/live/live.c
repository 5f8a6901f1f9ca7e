/*
 * Sends what is noted to the tops that listen. Reads no counters by itself: whoever owns them hands
 * over a copy.
 */
#include "vmm/live/live.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/base/lock.h"
#include "vmm/base/thread.h"
#include "vmm/output/json_out.h"

#define MODEL_BYTES 400 /* the end of its path */
#define COMMAND_BYTES 32

struct mp_live {
    struct mp_clock *clock;
    struct mp_live_dirs dirs;
    pthread_t thread;
    struct mp_mutex lock;
    struct mp_cond changed;
    bool stop MP_GUARDED_BY(lock);
    struct mp_live_facts facts MP_GUARDED_BY(lock);
    char model[MODEL_BYTES], command[COMMAND_BYTES];
};

const struct mp_opt mp_live_opts[] = {
    MP_OPT(MP_OPT_BOOL, "TOP", struct mp_live_config, top, "on", 0, 1,
           "Tell `moepager top` of the same user, while it runs, what this process does."),
    MP_OPT_END
};

static const char *end_of(const char *path)
{
    const size_t bytes = strlen(path);

    return bytes < MODEL_BYTES ? path : path + bytes - (MODEL_BYTES - 1);
}

/* Returns the bytes of the message, 0 if there is no memory for it. */
static size_t write_message(const struct mp_live_facts *facts, uint64_t now_ns,
                            char message[MP_LIVE_MESSAGE_BYTES])
{
    FILE *out = fmemopen(message, MP_LIVE_MESSAGE_BYTES, "w");
    struct mp_json_out json;
    long bytes;
    bool failed;

    if (out == NULL)
        return 0;
    mp_json_begin(&json, out, false);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "moepager_top", MP_LIVE_VERSION);
    mp_json_put_u64(&json, "pid", (uint64_t)getpid());
    mp_json_put_u64(&json, "index", facts->index);
    mp_json_put_string(&json, "program", program_invocation_short_name);
    mp_json_put_string(&json, "command", facts->command);
    mp_json_put_string(&json, "model", end_of(facts->model));
    mp_json_put_u64(&json, "age_ns", now_ns - facts->started_ns);
    mp_json_put_u64(&json, "now_ns", now_ns);
    mp_json_put_u64(&json, "budget_bytes", facts->budget_bytes);
    mp_json_put_u64(&json, "expert_bytes", facts->expert_bytes);
    mp_json_put_u64(&json, "weights_bytes", facts->weights_bytes);
    if (facts->tokens != UINT64_MAX) {
        mp_json_put_u64(&json, "tokens", facts->tokens);
        mp_json_put_u64(&json, "generated", facts->generated);
    }
    mp_counters_json(&facts->counters, &json, "counters");
    mp_json_object_end(&json);
    mp_json_end(&json);
    bytes = ftell(out);
    failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed || bytes < 0 ? 0 : (size_t)bytes;
}

/* A socket with the name of a top; whether somebody listens, only sending tells. */
static bool find_top(const char *dir, unsigned number, struct sockaddr_un *to)
{
    struct stat st;

    *to = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(to->sun_path, sizeof(to->sun_path), "%s/top.%u", dir, number);
    return lstat(to->sun_path, &st) == 0 && S_ISSOCK(st.st_mode);
}

static void send_to(const struct sockaddr_un *to, const char *message, size_t bytes)
{
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return;
    /* Gone, or not reading: the next one will do. */
    (void)sendto(fd, message, bytes, MSG_NOSIGNAL, (const struct sockaddr *)to, sizeof(*to));
    close(fd);
}

/* The next socket of a top from *at on, which is advanced; at 0 it begins. */
static bool next_top(const struct mp_live_dirs *dirs, unsigned *at, struct sockaddr_un *to)
{
    for (; *at < dirs->count * MP_LIVE_TOPS; (*at)++) {
        const char *dir = dirs->path[*at / MP_LIVE_TOPS];

        if (*at % MP_LIVE_TOPS == 0 && !mp_live_dir_is_private(dir)) {
            *at += MP_LIVE_TOPS - 1;
            continue;
        }
        if (find_top(dir, *at % MP_LIVE_TOPS, to)) {
            (*at)++;
            return true;
        }
    }
    return false;
}

bool mp_live_is_watched(const struct mp_live_dirs *dirs)
{
    struct sockaddr_un to;
    unsigned at = 0;

    return next_top(dirs, &at, &to);
}

void mp_live_send(const struct mp_live_dirs *dirs, const struct mp_live_facts *facts,
                  struct mp_clock *clock)
{
    char message[MP_LIVE_MESSAGE_BYTES];
    struct sockaddr_un to;
    size_t bytes = 0;

    for (unsigned at = 0; next_top(dirs, &at, &to);) {
        if (bytes == 0)
            bytes = write_message(facts, mp_clock_now_ns(clock), message);
        if (bytes == 0)
            return;
        send_to(&to, message, bytes);
    }
}

static void *run(void *arg)
{
    struct mp_live *live = arg;

    mp_lock(&live->lock);
    while (!live->stop) {
        const struct mp_live_facts facts = live->facts;

        mp_unlock(&live->lock);
        mp_live_send(&live->dirs, &facts, live->clock);
        mp_lock(&live->lock);
        if (!live->stop)
            (void)mp_cond_wait_for(&live->changed, &live->lock, MP_LIVE_PERIOD_NS);
    }
    mp_unlock(&live->lock);
    return NULL;
}

struct mp_live *mp_live_start(const struct mp_live_config *config,
                              const struct mp_live_facts *facts, struct mp_clock *clock)
{
    struct mp_live_dirs dirs;
    struct mp_live *live;

    if (!config->top)
        return NULL;
    mp_live_dirs_find(&dirs);
    live = dirs.count > 0 ? calloc(1, sizeof(*live)) : NULL;
    if (live == NULL)
        return NULL;
    live->clock = clock;
    live->dirs = dirs;
    live->facts = *facts;
    snprintf(live->model, sizeof(live->model), "%s", end_of(facts->model));
    snprintf(live->command, sizeof(live->command), "%s", facts->command);
    live->facts.model = live->model;
    live->facts.command = live->command;
    mp_mutex_init(&live->lock, MP_LOCK_LEAF, "live");
    mp_cond_init(&live->changed);
    if (mp_thread_start(&live->thread, "mp-live", run, live) == 0)
        return live;
    mp_cond_fini(&live->changed);
    mp_mutex_fini(&live->lock);
    free(live);
    return NULL;
}

void mp_live_stop(struct mp_live *live)
{
    if (live == NULL)
        return;
    mp_lock(&live->lock);
    live->stop = true;
    mp_cond_signal(&live->changed);
    mp_unlock(&live->lock);
    pthread_join(live->thread, NULL);
    mp_cond_fini(&live->changed);
    mp_mutex_fini(&live->lock);
    free(live);
}

void mp_live_note(struct mp_live *live, uint64_t tokens, uint64_t generated,
                  const struct mp_counters *counters)
{
    if (live == NULL)
        return;
    mp_lock(&live->lock);
    live->facts.tokens += tokens;
    live->facts.generated += generated;
    live->facts.counters = *counters;
    mp_unlock(&live->lock);
}
