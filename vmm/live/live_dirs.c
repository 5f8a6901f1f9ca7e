/*
 * Where processes and `moepager top` meet: names of directories, and whether one can be trusted.
 */
#include "vmm/live/live.h"

#include <stdio.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

struct runtime {
    char dir[512];
};

/* Not ours: read as any variable is, listed nowhere. */
static const struct mp_opt runtime_opts[] = {
    MP_OPT_TEXT("RUNTIME_DIR", struct runtime, dir, "", "The user's directory of sockets."),
    MP_OPT_END,
};

bool mp_live_dir_is_private(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

void mp_live_dirs_find(struct mp_live_dirs *dirs)
{
    struct runtime runtime;
    char *path = dirs->path[0];

    dirs->count = 0;
    if (getauxval(AT_SECURE) != 0)
        return;
    mp_opt_load(runtime_opts, "XDG_", &runtime);
    if (runtime.dir[0] == '/' && mp_live_dir_is_private(runtime.dir) &&
        snprintf(path, MP_LIVE_PATH_BYTES, "%s/moepager", runtime.dir) < MP_LIVE_PATH_BYTES)
        path = dirs->path[++dirs->count];
    snprintf(path, MP_LIVE_PATH_BYTES, "/tmp/moepager-%lu", (unsigned long)geteuid());
    dirs->count++;
}
