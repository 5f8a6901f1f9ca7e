/*
 * What a user can set of the interposer, which policies it uses instead of those that need the
 * router's scores, and what counts as dense.
 */
#include "interpose/pager/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/pager/paged.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static struct mp_profile chosen;

static bool routers; /* can be asked */

static enum mp_status choose(const char *profile, enum mp_policy_kind kind, const char *name)
{
    static struct mp_interpose_settings settings;

    memset(&settings, 0, sizeof(settings));
    snprintf(settings.profile, sizeof(settings.profile), "%s", profile);
    snprintf(settings.policy[kind], sizeof(settings.policy[kind]), "%s", name);
    return mp_interpose_settings_policies(&settings, routers, &chosen);
}

/* What the program does itself is not a policy's: it routes and computes. */
static void the_program_routes_and_computes(void)
{
    CHECK_EQ(choose("", MP_POLICY_EVICT, ""), MP_OK);
    CHECK_STR(chosen.name, "auto");
    CHECK_STR(chosen.policy[MP_POLICY_ROUTE], "exact");
    CHECK_STR(chosen.policy[MP_POLICY_ASSIGN], "gpu-only");
    CHECK_EQ(choose("lru", MP_POLICY_ROUTE, "smoe"), MP_OK);
    CHECK_STR(chosen.name, "lru");
    CHECK_STR(chosen.policy[MP_POLICY_ROUTE], "exact");
    CHECK_EQ(choose("dali", MP_POLICY_ASSIGN, "greedy"), MP_OK);
    CHECK_STR(chosen.policy[MP_POLICY_ASSIGN], "gpu-only");
}

static void who_needs_scores_is_replaced(void)
{
    static const struct {
        enum mp_policy_kind kind;
        const char *asked, *given, *with_routers;
    } cases[] = {
        { MP_POLICY_PREDICT, "gate", "history", "gate" },
        { MP_POLICY_PREDICT, "partial", "history", "gate" },
        { MP_POLICY_PREDICT, "history", "history", "history" },
        { MP_POLICY_PREDICT, "none", "none", "none" },
        { MP_POLICY_EVICT, "mrs", "shadow", "shadow" },
        { MP_POLICY_EVICT, "score", "shadow", "shadow" },
        { MP_POLICY_EVICT, "lru", "lru", "lru" },
        { MP_POLICY_EVICT, "none", "none", "none" },
    };

    mp_test_drop_log();
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        routers = false;
        CHECK_EQ(choose("", cases[i].kind, cases[i].asked), MP_OK);
        CHECK_STR(chosen.policy[cases[i].kind], cases[i].given);
        routers = true;
        CHECK_EQ(choose("", cases[i].kind, cases[i].asked), MP_OK);
        CHECK_STR(chosen.policy[cases[i].kind], cases[i].with_routers);
    }
    chosen.name = "untouched";
    CHECK_EQ(choose("", MP_POLICY_EVICT, "nobody"), MP_ERR_CONFIG);
    CHECK_EQ(choose("nobody", MP_POLICY_EVICT, ""), MP_ERR_CONFIG);
    CHECK_STR(chosen.name, "untouched");
}

static void variables_are_read(void)
{
    static struct mp_interpose_settings settings;

    CHECK_EQ(unsetenv("MOEPAGER_BUDGET"), 0);
    mp_interpose_settings_load(&settings);
    CHECK_EQ(settings.budget.kind, MP_SHARE_AUTO);
    CHECK_EQ(settings.seed, 1);
    CHECK_EQ(settings.populate, 1);
    CHECK_EQ(settings.files.dense, 1);
    CHECK_EQ(settings.files.hooks, MP_PRELOAD_HOOKS_AUTO);
    setenv("MOEPAGER_BUDGET", "25%", 1);
    setenv("MOEPAGER_SEED", "0", 1);
    setenv("MOEPAGER_POPULATE", "off", 1);
    setenv("MOEPAGER_EVICT", "lru", 1);
    setenv("MOEPAGER_HOOKS", "router", 1);
    mp_interpose_settings_load(&settings);
    CHECK_EQ(settings.budget.amount, 250000);
    CHECK_EQ(settings.seed, 0);
    CHECK_EQ(settings.populate, 0);
    CHECK_STR(settings.policy[MP_POLICY_EVICT], "lru");
    CHECK_EQ(settings.files.hooks, MP_PRELOAD_HOOKS_ROUTER);
}

/* %p once, and the number of a model that is not the first, before ".json". */
static void a_name_may_have_the_process_in_it(void)
{
    static const struct {
        const char *name, *first, *third; /* '#' is the process */
    } cases[] = {
        { "a/%p-b%p.json", "a/#-b%p.json", "a/#-b%p.3.json" },
        { "a%d", "a%d", "a%d.3" },
        { "%p", "#", "#.3" },
        { "x.json", "x.json", "x.3.json" },
        { ".json", ".json", ".json.3" },
    };
    static struct mp_paged paged;
    char got[PATH_MAX], number[32];

    snprintf(number, sizeof(number), "%ld", (long)getpid());
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        for (paged.index = 0; paged.index <= 2; paged.index += 2) {
            const char *want = paged.index == 0 ? cases[i].first : cases[i].third;
            const char *hash = strchr(want, '#');
            char text[PATH_MAX];

            snprintf(text, sizeof(text), "%.*s%s%s", hash == NULL ? 0 : (int)(hash - want), want,
                     hash == NULL ? "" : number, hash == NULL ? want : hash + 1);
            mp_paged_expand(&paged, cases[i].name, got);
            CHECK_STR(got, text);
        }
    }
}

static void write_file(const char *name, bool old)
{
    const struct timespec long_ago[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "x", 1), 1);
    if (old)
        CHECK_EQ(futimens(fd, long_ago), 0);
    close(fd);
}

/* What has been written since the process began is another program's, and stays. */
static void files_of_earlier_programs_are_counted(void)
{
    static struct mp_interpose_settings settings;
    static struct mp_paged paged;
    char name[PATH_MAX], second[PATH_MAX];

    usleep(30000); /* the kernel says in ticks when that was */
    snprintf(settings.files.report, sizeof(settings.files.report), "%s/r.json", test_tmpdir());
    snprintf(settings.files.trace, sizeof(settings.files.trace), "%s/t", test_tmpdir());
    snprintf(second, sizeof(second), "%s/t.2", test_tmpdir());
    mp_paged_count_files(&settings);
    CHECK_EQ(settings.first_number, 0);
    write_file(settings.files.report, true);
    mp_paged_count_files(&settings);
    CHECK_EQ(settings.first_number, 0);
    write_file(settings.files.report, false);
    mp_paged_count_files(&settings);
    CHECK_EQ(settings.first_number, 1);
    write_file(second, false);
    mp_paged_count_files(&settings);
    CHECK_EQ(settings.first_number, 2);
    paged.settings = settings;
    mp_paged_expand(&paged, "r.json", name);
    CHECK_STR(name, "r.3.json");
    CHECK_EQ(unlink(settings.files.report), 0);
    CHECK_EQ(mkdir(settings.files.report, 0700), 0); /* no file of ours */
    mp_paged_count_files(&settings);
    CHECK_EQ(settings.first_number, 0);
}

/* A file of 1 MiB whose tensors of experts are these; what is dense between them, in whole pages
 * of which there are 16 at least. */
static uint64_t dense_bytes(uint64_t begin, uint64_t first, uint64_t second)
{
    struct mp_expert_tensor tensors[2] = {
        { .layer = 0, .offset_bytes = first, .expert_bytes = 40000 },
        { .layer = 1, .offset_bytes = second, .expert_bytes = 40000 },
    };
    struct mp_experts experts = {
        .experts = 2, .tensors = tensors, .tensor_count = 2, .data_begin = &begin
    };
    char path[sizeof(test_tmpdir_path) + 16];
    uint64_t bytes;
    uint32_t index;
    int fd;

    snprintf(path, sizeof(path), "%s/dense", test_tmpdir());
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (1 << 20) + 100) == 0);
    close(fd);
    CHECK_EQ(mp_files_create(&experts.files), MP_OK);
    CHECK_EQ(mp_files_add(experts.files, AT_FDCWD, path, &index), MP_OK);
    bytes = mp_paged_dense_bytes(&experts);
    mp_files_destroy(experts.files);
    return bytes;
}

static void what_is_dense_is_whole_pages_without_experts(void)
{
    const uint64_t page = 4096, little = 16 * page, half = 1 << 19, all = 1 << 20;

    /* Behind an expert that ends at 80000 the next page begins at 20 of them. */
    CHECK_EQ(dense_bytes(0, 0, half), half - 20 * page + (all - (half + 20 * page)));
    CHECK_EQ(dense_bytes(5, 0, half), half - 20 * page + (all - (half + 20 * page)));
    CHECK_EQ(dense_bytes(100, little, half),
             little + (half - (little + 20 * page)) + (all - (half + 20 * page)));
    /* A byte less before the first expert: 15 pages, which are left alone. */
    CHECK_EQ(dense_bytes(100, little - 1, half),
             (half - (little + 20 * page)) + (all - (half + 20 * page)));
    CHECK_EQ(dense_bytes(page, little + page, half),
             little + (half - (little + page + 20 * page)) + (all - (half + 20 * page)));
    /* The end of the file. */
    CHECK_EQ(dense_bytes(0, 0, all - 36 * page), all - 56 * page + little);
    CHECK_EQ(dense_bytes(0, 0, all - 35 * page), all - 55 * page);
}

static unsigned reads;

ssize_t counted_pread(int fd, void *to, size_t bytes, off_t at) __asm__("pread64");

ssize_t counted_pread(int fd, void *to, size_t bytes, off_t at)
{
    reads++;
    return syscall(SYS_pread64, fd, to, bytes, at);
}

/* By the first four bytes of a page. What is no file is not read. */
static void a_gguf_file_begins_so(void)
{
    static const struct {
        const char *head;
        off_t bytes;
        bool is;
    } cases[] = {
        { "GGUF\3", 4096, true },  { "GGUF\3", 4095, false }, { "GGUf\3", 4096, false },
        { "gGUF\3", 4096, false }, { "", 0, false },
    };
    const int device = open("/dev/zero", O_RDONLY);
    char path[sizeof(test_tmpdir_path) + 16];

    CHECK(device >= 0);
    reads = 0;
    snprintf(path, sizeof(path), "%s/head", test_tmpdir());
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

        CHECK(fd >= 0 && write(fd, cases[i].head, strlen(cases[i].head)) >= 0);
        CHECK_EQ(ftruncate(fd, cases[i].bytes), 0);
        CHECK_EQ(mp_paged_is_gguf(fd), cases[i].is);
        close(fd);
    }
    CHECK_EQ(reads, 3);
    CHECK(!mp_paged_is_gguf(-1));
    CHECK(!mp_paged_is_gguf(device));
    CHECK_EQ(reads, 3);
    close(device);
}

int main(void)
{
    RUN(the_program_routes_and_computes);
    RUN(who_needs_scores_is_replaced);
    RUN(variables_are_read);
    RUN(a_name_may_have_the_process_in_it);
    RUN(files_of_earlier_programs_are_counted);
    RUN(what_is_dense_is_whole_pages_without_experts);
    RUN(a_gguf_file_begins_so);
    return 0;
}
