/*
 * Finds plug-ins, decides whether they may be loaded, loads them and adds their policies to the
 * lists. What a policy is, is in policy.h; the lists are in policy.c.
 */
#include "policy/plugins.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/plugin.h"
#include "vmm/base/error.h"

const struct mp_opt mp_plugin_opts[] = {
    { .name = "PLUGINS",
      .dfl = "",
      .kind = MP_OPT_STRING,
      .offset = offsetof(struct mp_plugin_config, path),
      .max = sizeof(((struct mp_plugin_config *)0)->path),
      .help = "Policies to load at the start, before flags are read: a shared library, or a folder "
              "of them; empty: none.",
      .only_variable = true },
    MP_OPT_END,
};

#define NAME_BYTES 256 /* of a file in a folder */

/* E_PLUGIN: "plug-in 'path': why". */
static enum mp_status refuse(const char *path, const char *why)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_PLUGIN", "plug-in '%s': %s",
                   mp_quote(quoted, path, strlen(path)), why);
}

static enum mp_status refuse_errno(const char *path, const char *what)
{
    char why[160];

    snprintf(why, sizeof(why), "%s: %s", what, strerror(errno));
    return refuse(path, why);
}

/* The same with the text of the error that was found last. */
static enum mp_status refuse_last(const char *path)
{
    const struct mp_error found = *mp_error_last();

    return refuse(path, found.text);
}

/* Only root and the user may have written it. */
static enum mp_status check_owner(int fd, const char *path, const char *what, mode_t type)
{
    char why[200];
    struct stat st;

    if (fstat(fd, &st) != 0)
        return refuse_errno(path, "cannot look at it");
    if ((st.st_mode & S_IFMT) != type) {
        snprintf(why, sizeof(why), "the %s is none; need a regular file or a folder of them", what);
        return refuse(path, why);
    }
    if (st.st_uid != 0 && st.st_uid != geteuid()) {
        snprintf(why, sizeof(why), "the %s belongs to user %u, need root or user %u", what,
                 (unsigned)st.st_uid, (unsigned)geteuid());
        return refuse(path, why);
    }
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        snprintf(why, sizeof(why), "others may write to the %s (mode %03o); chmod go-w it", what,
                 (unsigned)(st.st_mode & 0777));
        return refuse(path, why);
    }
    return MP_OK;
}

/* Bytes of the field that an option of a kind fills; 0: no such kind. */
static size_t field_bytes(const struct mp_opt *opt)
{
    switch (opt->kind) {
    case MP_OPT_BOOL:
    case MP_OPT_U64:
    case MP_OPT_BYTES:
    case MP_OPT_MS:
    case MP_OPT_CHOICE: return sizeof(uint64_t);
    case MP_OPT_F64: return sizeof(double);
    case MP_OPT_STRING: return opt->max;
    case MP_OPT_SHARE: return sizeof(struct mp_share);
    }
    return 0;
}

/* What is wrong with an option, or NULL. */
static const char *option_fault(const struct mp_opt *opt, size_t config_size)
{
    static _Alignas(16) char config[MP_PLUGIN_CONFIG_BYTES];
    const size_t letters = strspn(opt->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    const size_t bytes = field_bytes(opt);

    if (letters == 0 || opt->name[letters] != '\0' || letters > MP_PLUGIN_OPTION_NAME_MAX)
        return "is not named by 1 to 32 of A-Z, 0-9 and _";
    if (opt->dfl == NULL || opt->help == NULL)
        return "has no default or no help";
    if (bytes == 0 || (opt->kind == MP_OPT_CHOICE && opt->choices == NULL))
        return "is of no known kind";
    if (bytes > config_size || opt->offset > config_size - bytes)
        return "lies outside of its struct";
    if (opt->kind != MP_OPT_STRING && opt->offset % _Alignof(uint64_t) != 0)
        return "is not aligned";
    return mp_opt_parse(opt, opt->dfl, config + opt->offset) ? NULL : "has an invalid default";
}

/* A table of built-in options is checked by the tests; this one was not. */
static enum mp_status check_options(const struct mp_policy_info *info)
{
    if (info->opts == NULL)
        return MP_OK;
    if (info->config_size > MP_PLUGIN_CONFIG_BYTES)
        return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK",
                       "policy '%s' has options of %zu bytes, at most %u are possible", info->name,
                       info->config_size, MP_PLUGIN_CONFIG_BYTES);
    for (size_t i = 0; info->opts[i].name != NULL; i++) {
        const char *fault = i < MP_PLUGIN_OPTIONS_MAX
                                ? option_fault(&info->opts[i], info->config_size)
                                : "is one too many";

        if (fault != NULL)
            return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK", "policy '%s': option %zu %s",
                           info->name, i + 1, fault);
    }
    return MP_OK;
}

/* All policies of a plug-in are checked before the first one is added. */
static enum mp_status add_policies(const struct mp_plugin *plugin, const char *path)
{
    enum mp_status status = MP_OK;
    size_t count = 0;

    if (plugin->abi != MP_POLICY_ABI) {
        char why[96];

        snprintf(why, sizeof(why), "made for ABI %u, need %u; build it again", plugin->abi,
                 MP_POLICY_ABI);
        return refuse(path, why);
    }
    if (plugin->policies == NULL || plugin->policies[0].info == NULL)
        return refuse(path, "it has no policies");
    for (; plugin->policies[count].info != NULL; count++) {
        const struct mp_plugin_policy *policy = &plugin->policies[count];

        if (count == MP_PLUGIN_POLICIES_MAX)
            return refuse(path, "it has more than 16 policies");
        status = mp_policy_check(policy->kind, policy->info);
        if (status == MP_OK)
            status = check_options(policy->info);
        if (status != MP_OK)
            return refuse_last(path);
    }
    for (size_t i = 0; i < count && status == MP_OK; i++)
        status = mp_policy_add(plugin->policies[i].kind, plugin->policies[i].info);
    return status == MP_OK ? MP_OK : refuse_last(path);
}

/*
 * Load what is open as `fd`. The loader knows libraries by name and would take a second one under
 * this name for the first, so the descriptor of a library that was loaded stays open.
 */
static enum mp_status load_open(int fd, const char *path)
{
    const struct mp_plugin *plugin;
    char name[32], why[400];
    void *library;

    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *text = dlerror();
        const size_t own = strlen(name);

        if (text != NULL && !strncmp(text, name, own) && text[own] == ':')
            text += own + 1 + (text[own + 1] == ' ');
        snprintf(why, sizeof(why), "cannot be loaded: %s", text != NULL ? text : "no reason");
        close(fd);
        return refuse(path, why);
    }
    plugin = dlsym(library, "mp_plugin");
    return plugin != NULL ? add_policies(plugin, path)
                          : refuse(path, "it is a library without the symbol mp_plugin");
}

/* `name` in the open folder; `path` is what messages call it. */
static enum mp_status load_file(int folder, const char *name, const char *path)
{
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    enum mp_status status;

    if (fd < 0 && errno == ELOOP)
        return refuse(path, "it is a link; name the file that it leads to");
    if (fd < 0)
        return refuse_errno(path, "cannot be opened");
    status = check_owner(fd, path, "file", S_IFREG);
    if (status != MP_OK) {
        close(fd);
        return status;
    }
    return load_open(fd, path);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static enum mp_status list_folder(DIR *stream, const char *path,
                                  char names[MP_PLUGIN_FILES_MAX][NAME_BYTES], size_t *count_p)
{
    struct dirent *entry;
    size_t count = 0;

    for (errno = 0; (entry = readdir(stream)) != NULL; errno = 0) {
        const char *end = strrchr(entry->d_name, '.');

        if (end == NULL || strcmp(end, ".so") != 0 || entry->d_name[0] == '.')
            continue;
        if (count == MP_PLUGIN_FILES_MAX)
            return refuse(path, "the folder has more than 16 *.so files");
        snprintf(names[count++], NAME_BYTES, "%s", entry->d_name);
    }
    if (errno != 0)
        return refuse_errno(path, "cannot read the folder");
    if (count == 0)
        return refuse(path, "the folder has no *.so file");
    qsort(names, count, NAME_BYTES, compare_names);
    *count_p = count;
    return MP_OK;
}

/* All of the folder that is open as `fd`, which is closed. */
static enum mp_status load_folder(int fd, const char *path)
{
    char names[MP_PLUGIN_FILES_MAX][NAME_BYTES];
    enum mp_status status = check_owner(fd, path, "folder", S_IFDIR);
    DIR *stream = status == MP_OK ? fdopendir(fd) : NULL;
    size_t count = 0;

    if (stream == NULL) {
        if (status == MP_OK)
            status = refuse_errno(path, "cannot read the folder");
        close(fd);
        return status;
    }
    status = list_folder(stream, path, names, &count);
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        char full[sizeof(struct mp_plugin_config) + NAME_BYTES];

        snprintf(full, sizeof(full), "%s/%s", path, names[i]);
        status = load_file(fd, names[i], full);
    }
    closedir(stream);
    return status;
}

/* One file: its folder could put another one in its place, so it is looked at too. */
static enum mp_status load_single(const char *path)
{
    char folder[sizeof(struct mp_plugin_config)];
    const char *slash = strrchr(path, '/');
    enum mp_status status;
    int fd;

    snprintf(folder, sizeof(folder), "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return refuse_errno(path, "cannot open its folder");
    status = check_owner(fd, path, "folder", S_IFDIR);
    if (status == MP_OK)
        status = load_file(fd, slash != NULL ? slash + 1 : path, path);
    close(fd);
    return status;
}

enum mp_status mp_plugins_load(const char *path)
{
    char plain[sizeof(struct mp_plugin_config)];
    size_t bytes = strlen(path);
    int fd;

    if (bytes == 0)
        return MP_OK;
    while (bytes > 1 && path[bytes - 1] == '/') /* else a link to a folder would be followed */
        bytes--;
    if (bytes >= sizeof(plain))
        return refuse(path, "the path is too long");
    snprintf(plain, sizeof(plain), "%.*s", (int)bytes, path);
    fd = open(plain, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        return load_folder(fd, plain);
    return errno == ENOTDIR || errno == ELOOP ? load_single(plain)
                                              : refuse_errno(plain, "cannot be opened");
}
