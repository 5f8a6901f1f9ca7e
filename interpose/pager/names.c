/*
 * Names of what a model's pager writes.
 *
 * A process may be several programs, one after the other (exec), and what the earlier ones have
 * written is to stay. They leave nothing behind in memory, but the process keeps the time at which
 * it began: a file of the name that was written since is theirs, or a child's.
 */
#include "interpose/pager/paged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND_NS INT64_C(1000000000)

/* Nobody has paged more models in one process. */
#define NUMBER_MAX 1000u

/* In /proc/PID/stat, of the fields behind the program's name. */
#define FIELD_START 20

/* With the process's number for %p, and the model's in front of ".json", from the second on. */
static void expand(const char *name, uint32_t index, char out[PATH_MAX])
{
    const char *at = strstr(name, "%p"), *end = name + strlen(name);
    const char *json = end - name > 5 && strcmp(end - 5, ".json") == 0 ? end - 5 : end;
    const char *behind = at == NULL ? name : at + 2;
    char process[24] = "", number[24] = "";

    if (at != NULL)
        snprintf(process, sizeof(process), "%ld", (long)getpid());
    if (index > 0)
        snprintf(number, sizeof(number), ".%u", index + 1);
    snprintf(out, PATH_MAX, "%.*s%s%.*s%s%s", at == NULL ? 0 : (int)(at - name), name, process,
             (int)(json - behind), behind, number, json);
}

void mp_paged_expand(const struct mp_paged *paged, const char *name, char out[PATH_MAX])
{
    expand(name, paged->settings.first_number + paged->index, out);
}

/* When the process began, since 1970, at the latest: the kernel says it in ticks. INT64_MAX: it
 * does not say. */
static int64_t process_start_ns(void)
{
    char text[1024] = "", *at;
    FILE *file = fopen("/proc/self/stat", "re");
    const long hertz = sysconf(_SC_CLK_TCK);
    size_t bytes;

    if (file == NULL)
        return INT64_MAX;
    bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = '\0';
    at = strrchr(text, ')'); /* the program's name may have spaces and parentheses */
    for (unsigned field = 0; at != NULL && field < FIELD_START; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || hertz <= 0)
        return INT64_MAX;
    return (int64_t)mp_clock_boot_wall_ns() +
           (int64_t)(strtoull(at + 1, NULL, 10) + 1) * (SECOND_NS / hertz);
}

static bool is_later(const char *name, uint32_t index, int64_t than_ns)
{
    char path[PATH_MAX];
    struct stat st;

    if (name[0] == '\0')
        return false;
    expand(name, index, path);
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           st.st_mtim.tv_sec * SECOND_NS + st.st_mtim.tv_nsec > than_ns;
}

void mp_paged_count_files(struct mp_interpose_settings *settings)
{
    const struct mp_preload_config *files = &settings->files;
    const int64_t start_ns = process_start_ns();
    uint32_t number = 0;

    while (number < NUMBER_MAX &&
           (is_later(files->report, number, start_ns) || is_later(files->trace, number, start_ns) ||
            is_later(files->timeline, number, start_ns)))
        number++;
    settings->first_number = number;
}
