/*
 * Plug-ins: which are loaded and what becomes of their policies, which are refused and why. Usage:
 * plugins_test FOLDER, with the libraries that the build makes of plugin_bad.c and of
 * tests/system/install/newest.c.
 */
#include "policy/plugins.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define PATH_BYTES 8192

static const char *built; /* where the libraries are */

/* A path below the test's folder; valid until the second next call. */
static const char *at(const char *name)
{
    static char paths[2][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 2];

    snprintf(path, PATH_BYTES, "%s/%s", test_tmpdir(), name);
    return path;
}

static void make_folder(const char *name)
{
    CHECK_EQ(mkdir(at(name), 0700), 0);
}

/* Copy a library of the build, so that its rights are known. */
static void copy(const char *library, const char *name)
{
    char from[PATH_BYTES], bytes[65536];
    FILE *in, *out;
    size_t count;

    snprintf(from, sizeof(from), "%s/%s", built, library);
    in = fopen(from, "rb");
    out = fopen(at(name), "wb");
    CHECK(in != NULL && out != NULL);
    while ((count = fread(bytes, 1, sizeof(bytes), in)) > 0)
        CHECK_EQ(fwrite(bytes, 1, count, out), count);
    fclose(in);
    CHECK_EQ(fclose(out), 0);
    CHECK_EQ(chmod(at(name), 0644), 0);
}

static void refused(const char *path, const char *why)
{
    const struct mp_error *error = mp_error_last();

    CHECK_EQ(mp_plugins_load(path), MP_ERR_CONFIG);
    CHECK_STR(error->code, "E_PLUGIN");
    if (strstr(error->text, why) == NULL || strstr(error->text, "plug-in '") == NULL) {
        fprintf(stderr, "%s: got \"%s\", need \"%s\"\n", path, error->text, why);
        exit(1);
    }
}

static void nothing_is_loaded_of_no_path(void)
{
    CHECK_EQ(mp_plugins_load(""), MP_OK);
    CHECK(mp_policy_find(MP_POLICY_EVICT, "newest") == NULL);
}

static void what_others_can_write_is_refused(void)
{
    copy("newest.so", "one.so");
    CHECK_EQ(chmod(at("one.so"), 0664), 0);
    refused(at("one.so"), "others may write to the file (mode 664); chmod go-w");
    CHECK_EQ(chmod(at("one.so"), 0646), 0);
    refused(at("one.so"), "others may write to the file (mode 646)");
    CHECK_EQ(chmod(at("one.so"), 0644), 0);
    CHECK_EQ(chmod(test_tmpdir(), 0770), 0);
    refused(at("one.so"), "others may write to the folder (mode 770)");
    CHECK_EQ(chmod(test_tmpdir(), 0707), 0);
    refused(test_tmpdir(), "others may write to the folder (mode 707)");
    CHECK_EQ(chmod(test_tmpdir(), 0700), 0);
    if (geteuid() == 0) { /* only root can give files away */
        CHECK_EQ(chown(at("one.so"), 4711, (gid_t)-1), 0);
        refused(at("one.so"), "the file belongs to user 4711, need root or user 0");
        CHECK_EQ(chown(at("one.so"), 0, (gid_t)-1), 0);
    }
    CHECK(mp_policy_find(MP_POLICY_EVICT, "newest") == NULL);
}

static bool exchanges;

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

/* Between the look at the file and its loading another one takes its name. */
void *__wrap_dlopen(const char *path, int flags)
{
    if (exchanges) {
        copy("CLASH.so", "other.so");
        CHECK_EQ(rename(at("other.so"), at("looked.so")), 0);
    }
    return __real_dlopen(path, flags);
}

static void what_was_looked_at_is_loaded(void)
{
    copy("ABI.so", "looked.so");
    exchanges = true;
    refused(at("looked.so"), "made for ABI 6, need 5; build it again");
    exchanges = false;
    refused(at("looked.so"), "there is a admit policy 'always' already");
}

static void what_is_no_file_is_refused(void)
{
    static char path_of_1100[1101];

    CHECK_EQ(symlink("one.so", at("link.so")), 0);
    refused(at("link.so"), "it is a link");
    make_folder("real");
    CHECK_EQ(symlink("real", at("folder")), 0);
    refused(at("folder"), "it is a link");
    refused(at("folder//"), "it is a link");
    refused(at("real"), "the folder has no *.so file");
    refused(at("missing.so"), "cannot be opened: No such file or directory");
    refused(at("one.so/x.so"), "cannot open its folder");
    CHECK_EQ(mkfifo(at("fifo.so"), 0600), 0);
    refused(at("fifo.so"), "the file is none; need a regular file");
    make_folder("real/folder.so");
    refused(at("real"), "the file is none");
    CHECK_EQ(rmdir(at("real/folder.so")), 0);
    for (unsigned i = 0; i <= MP_PLUGIN_FILES_MAX; i++) {
        char name[32];

        snprintf(name, sizeof(name), "/real/%02u.so", i);
        test_put(test_tmpdir(), name, "no library");
    }
    refused(at("real"), "more than 16 *.so files");
    memset(path_of_1100, '/', 1);
    memset(path_of_1100 + 1, 'a', sizeof(path_of_1100) - 2);
    refused(path_of_1100, "the path is too long");
}

static void what_is_no_plugin_is_refused(void)
{
    static const struct {
        const char *library, *why;
    } bad[] = {
        { "SYMBOL.so", "it is a library without the symbol mp_plugin" },
        { "ABI.so", "made for ABI 6, need 5; build it again" },
        { "EMPTY.so", "it has no policies" },
        { "CLASH.so", "there is a admit policy 'always' already" },
        { "DEFAULT.so", "policy 'bad': option 1 has an invalid default" },
        { "OFFSET.so", "policy 'bad': option 1 lies outside of its struct" },
        { "OPTION.so", "policy 'bad': option 1 is not named by" },
        { "CALL.so", "cannot be loaded: undefined symbol: mp_no_such_function" },
        { "LACKS.so", "admit policy 'bad' lacks admit" },
    };

    test_put(test_tmpdir(), "/text.so", "no library\n");
    refused(at("text.so"), "cannot be loaded: file too short");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        copy(bad[i].library, bad[i].library);
        refused(at(bad[i].library), bad[i].why);
    }
    CHECK(mp_policy_find(MP_POLICY_ADMIT, "bad") == NULL);
}

/* Every call fails once; what failed works when it is tried again, to the last call. */
static void failing_calls_are_reported(void)
{
    static const uint64_t calls =
        FAULT_BIT(open) | FAULT_BIT(openat) | FAULT_BIT(fstat) | FAULT_BIT(fdopendir);
    unsigned failed = 0;

    make_folder("good");
    copy("newest.so", "good/newest.so");
    for (uint64_t n = 0;; n++) {
        const char *path = at("good");
        enum mp_status status;

        fault_nth(calls, n);
        status = mp_plugins_load(path);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK_EQ(status, MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_PLUGIN");
        failed++;
    }
    CHECK_EQ(failed, 5); /* folder: open, fstat, fdopendir; file: openat, fstat */
    refused(at("one.so"), "there is a evict policy 'newest' already");
}

/* Policies of plug-ins stand behind the built-in ones, are chosen by name and decide. */
static void loaded_policies_are_like_built_in_ones(void)
{
    static const uint8_t evictable[6] = { 1, 1, 1, 0, 0, 0 };
    const struct mp_policy_names names = { .profile = "lru", .policy[MP_POLICY_EVICT] = "newest" };
    const struct mp_shape shape = { 2, 3, 1, 1, 3, 4096, .seed = 1 };
    struct mp_evict_query query = { 5, MP_LAYER_ANY, 3, 0, evictable };
    struct mp_policies set;
    struct mp_profile chosen;
    size_t count = 0;

    while (mp_policy_builtin(MP_POLICY_EVICT, count) != NULL)
        count++;
    CHECK_STR(mp_policy_builtin(MP_POLICY_EVICT, count - 1)->name, "newest");
    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
    CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
    for (uint32_t id = 0; id < 3; id++) {
        set.evict_ops->on_access(set.evict, id, 1, id);
        set.evict_ops->on_insert(set.evict, id, id);
    }
    CHECK_EQ(set.evict_ops->pick(set.evict, &query), 2);
    set.evict_ops->on_access(set.evict, 0, 1, 7);
    CHECK_EQ(set.evict_ops->pick(set.evict, &query), 0);
    set.evict_ops->on_remove(set.evict, 0, 8);
    CHECK_EQ(set.evict_ops->pick(set.evict, &query), 2);
    mp_policies_destroy(&set);
}

static void not_more_than_the_lists_hold(void)
{
    static struct mp_admit_ops tables[MP_POLICIES_ADDED_MAX];
    static char names[MP_POLICIES_ADDED_MAX][16];
    const struct mp_admit_ops *always = (const void *)mp_policy_find(MP_POLICY_ADMIT, "always");
    enum mp_status status = MP_OK;
    size_t count = 0;

    for (; count < MP_POLICIES_ADDED_MAX && status == MP_OK; count++) {
        snprintf(names[count], sizeof(names[count]), "more-%zu", count);
        tables[count] = *always;
        tables[count].info.name = names[count];
        status = mp_policy_add(MP_POLICY_ADMIT, &tables[count].info);
    }
    CHECK_EQ(status, MP_ERR_CONFIG);
    CHECK_EQ(count, MP_POLICIES_ADDED_MAX); /* one was there before */
    CHECK_STR(mp_error_last()->code, "E_POLICY_ADD");
    CHECK(strstr(mp_error_last()->text, "at most 32") != NULL);
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    built = argv[1];
    umask(077);
    RUN(nothing_is_loaded_of_no_path);
    RUN(what_others_can_write_is_refused);
    RUN(what_was_looked_at_is_loaded);
    RUN(what_is_no_file_is_refused);
    RUN(what_is_no_plugin_is_refused);
    RUN(failing_calls_are_reported);
    RUN(loaded_policies_are_like_built_in_ones);
    RUN(not_more_than_the_lists_hold);
    return 0;
}
