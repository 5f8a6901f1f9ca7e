/* The JSON reader: values, limits, and errors that name the byte. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/format/json.h"
#include "tests/model/fails.h"

static enum mp_status parse(const char *text, json_t **root_p)
{
    return mp_json_parse(text, strlen(text), "a.json", root_p);
}

static void values_and_order_are_kept(void)
{
    json_t *root;
    uint64_t value;

    CHECK_EQ(parse(" {\"b\":9007199254740993,\"a\":9223372036854775807}\n", &root), MP_OK);
    CHECK_STR(json_object_iter_key(json_object_iter(root)), "b");
    CHECK_EQ(mp_json_u64(root, "b", "a.json", 0, UINT64_MAX, &value), MP_OK);
    CHECK(value == 9007199254740993u); /* 2^53 + 1 does not survive a double */
    CHECK_EQ(mp_json_u64(root, "a", "a.json", 0, UINT64_MAX, &value), MP_OK);
    CHECK(value == INT64_MAX);
    json_decref(root);
}

static void syntax_errors_name_the_byte(void)
{
    static const char nul_behind[] = "{}\0";
    json_t *root = NULL;

    CHECK_EQ(parse("{\"a\":1,}", &root), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_JSON");
    CHECK(strstr(mp_error_last()->text, "'a.json' at byte 8 is not valid JSON") != NULL);
    CHECK_EQ(parse("", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("7", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{\"a\":\"\xff\"}", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{\"a\":\"\xc0\x80\"}", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{\"a\":18446744073709551616}", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{\"a\":NaN}", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{\"a\":\"\\u0000\"}", &root), MP_ERR_MODEL);
    CHECK_EQ(parse("{} x", &root), MP_ERR_MODEL);
    CHECK_EQ(mp_json_parse(nul_behind, 3, "a.json", &root), MP_ERR_MODEL);
    CHECK(root == NULL);
}

static void nul_in_strings_is_an_option(void)
{
    static const char text[] = "[\"a\\u0000b\"]";
    const struct mp_json_options options = { .allow_nul = true };
    json_t *root;

    CHECK_EQ(mp_json_parse_with(text, strlen(text), "a.json", &options, &root), MP_OK);
    CHECK_EQ(json_string_length(json_array_get(root, 0)), 3);
    json_decref(root);
}

static void duplicate_keys_are_refused_in_any_spelling(void)
{
    json_t *root;

    CHECK_FAILS(parse("{\"w\":1, \"w\":2}", &root), MP_ERR_MODEL, "E_JSON_DUP",
                "'a.json' at byte 11 is not valid JSON: duplicate object key near '\"w\"'");
    CHECK_FAILS(parse("{\"w\":1, \"\\u0077\":2}", &root), MP_ERR_MODEL, "E_JSON_DUP",
                "'a.json' at byte 16 is not valid JSON: duplicate object key near '\"\\\\u0077\"'");
    CHECK_FAILS(parse("{\"a\":{\"x\\\"\":1,\"x\\\"\":1}}", &root), MP_ERR_MODEL, "E_JSON_DUP",
                "'a.json' at byte 19 is not valid JSON: duplicate object key near '\"x\\\\\"\"'");
}

static void *parse_deep(void *unused)
{
    static char text[200000];
    json_t *root;

    (void)unused;
    memset(text, '[', sizeof(text));
    CHECK_FAILS(mp_json_parse(text, sizeof(text), "a.json", &root), MP_ERR_MODEL, "E_JSON_DEPTH",
                "'a.json' at byte 64: JSON is nested deeper than 64");
    memset(text + 64, ']', 64);
    CHECK_EQ(mp_json_parse(text, 128, "a.json", &root), MP_OK);
    json_decref(root);
    return NULL;
}

static void depth_needs_64_KiB_of_stack_at_most(void)
{
    pthread_attr_t attr;
    pthread_t thread;

    CHECK_EQ(pthread_attr_init(&attr), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attr, 64 << 10), 0);
    CHECK_EQ(pthread_create(&thread, &attr, parse_deep, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

static void entries_of_the_outermost_value_are_bounded(void)
{
    const struct mp_json_options options = { .entries_max = 2, .first_byte = 8 };
    json_t *root;

    CHECK_EQ(mp_json_parse_with("[[1,2,3],\",,\"]", 14, "a", &options, &root), MP_OK);
    json_decref(root);
    CHECK_FAILS(mp_json_parse_with("[1,2,3]", 7, "a", &options, &root), MP_ERR_MODEL,
                "E_JSON_COUNT", "'a' at byte 12: more than 2 entries");
}

static void getters_name_key_got_and_need(void)
{
    json_t *root, *value;
    const char *string;
    double real;
    uint64_t u;
    bool b;

    CHECK_EQ(
        parse(
            "{\"i\":-5,\"f\":1e3,\"s\":\"x'\",\"n\":null,\"o\":{},\"l\":[1],\"t\":true,\"seven\":7}",
            &root),
        MP_OK);
    CHECK_FAILS(mp_json_u64(root, "i", "a.json", 1, 9, &u), MP_ERR_MODEL, "E_JSON_RANGE",
                "key 'i' in 'a.json': got -5, need an integer from 1 to 9");
    CHECK_EQ(mp_json_u64(root, "seven", "a.json", 7, 7, &u), MP_OK);
    CHECK_EQ(mp_json_double(root, "seven", "a.json", 7, 7, &real), MP_OK);
    CHECK_FAILS(mp_json_u64(root, "f", "a.json", 1, 9, &u), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 'f' in 'a.json': got 1000, need an integer from 1 to 9");
    CHECK_FAILS(mp_json_u64(root, "s", "a.json", 1, 9, &u), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 's' in 'a.json': got 'x\\'', need an integer from 1 to 9");
    CHECK_FAILS(mp_json_u64(root, "z", "a.json", 1, 9, &u), MP_ERR_MODEL, "E_JSON_KEY",
                "key 'z' in 'a.json' is missing, need an integer from 1 to 9");
    CHECK_FAILS(mp_json_double(root, "f", "a.json", 0, 1, &real), MP_ERR_MODEL, "E_JSON_RANGE",
                "key 'f' in 'a.json': got 1000, need a number from 0 to 1");
    CHECK_FAILS(mp_json_bool(root, "n", "a.json", &b), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 'n' in 'a.json': got null, need true or false");
    CHECK_FAILS(mp_json_string(root, "l", "a.json", &string), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 'l' in 'a.json': got an array of 1, need a string");
    CHECK_FAILS(mp_json_array(root, "o", "a.json", &value), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 'o' in 'a.json': got an object, need an array");
    CHECK_FAILS(mp_json_object(root, "t", "a.json", &value), MP_ERR_MODEL, "E_JSON_TYPE",
                "key 't' in 'a.json': got true, need an object");
    CHECK_EQ(mp_json_u64_or(root, "n", "a.json", 1, 9, 7, &u), MP_OK);
    CHECK_EQ(u, 7);
    CHECK_EQ(mp_json_u64_or(root, "i", "a.json", 1, 9, 7, &u), MP_ERR_MODEL);
    CHECK_EQ(mp_json_double(root, "i", "a.json", -9, 9, &real), MP_OK);
    CHECK(real == -5);
    CHECK_EQ(mp_json_bool_or(root, "z", "a.json", true, &b), MP_OK);
    CHECK(b);
    CHECK_EQ(mp_json_object_or_null(root, "z", "a.json", &value), MP_OK);
    CHECK(value == NULL);
    CHECK_EQ(mp_json_u64(NULL, "z", "a.json", 1, 9, &u), MP_ERR_MODEL);
    json_decref(root);
}

static int scratch_dir(void)
{
    char path[] = "/tmp/mp_json_test_XXXXXX";
    int fd;

    CHECK(mkdtemp(path) != NULL);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0);
    CHECK_EQ(fchdir(fd), 0);
    return fd;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");

    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static void files_that_are_no_files_are_refused_by_name(void)
{
    char path[64] = "", old[512], link[64];
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "socket" };
    const int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    json_t *root = NULL;

    CHECK(getcwd(old, sizeof(old)) != NULL);
    const int dir = scratch_dir();
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
    CHECK(readlink(link, path, sizeof(path) - 1) > 0);

    CHECK_EQ(mkdir("dir", 0700), 0);
    CHECK_EQ(mkfifo("fifo", 0600), 0);
    CHECK_EQ(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQ(symlink("/dev/zero", "zero"), 0);
    write_file("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    write_file("html", "\n <!DOCTYPE html><html>404</html>");
    write_file("good", "{\"a\":1}");
    CHECK_EQ(symlink("good", "link"), 0);

    CHECK_FAILS(mp_json_load_file(dir, "none", 99, &root), MP_ERR_MODEL, "E_FILE_MISSING",
                "file 'none' is missing");
    CHECK_FAILS(mp_json_load_file(dir, "dir", 99, &root), MP_ERR_IO, "E_NOT_A_FILE",
                "'dir' is a directory: need a regular file");
    CHECK_FAILS(mp_json_load_file(dir, "fifo", 99, &root), MP_ERR_IO, "E_NOT_A_FILE",
                "'fifo' is a FIFO: need a regular file");
    CHECK_FAILS(mp_json_load_file(dir, "zero", 99, &root), MP_ERR_IO, "E_NOT_A_FILE",
                "'zero' is a character device: need a regular file");
    CHECK_FAILS(mp_json_load_file(dir, "socket", 99, &root), MP_ERR_IO, "E_NOT_A_FILE",
                "'socket' is a socket: need a regular file");
    CHECK_FAILS(mp_json_load_file(dir, "lfs", 99, &root), MP_ERR_MODEL, "E_FILE_LFS",
                "'lfs' is a Git LFS pointer, not the model; run 'git lfs pull' in its folder");
    CHECK_FAILS(mp_json_load_file(dir, "html", 99, &root), MP_ERR_MODEL, "E_FILE_HTML",
                "'html' is an HTML page, not the model; download the file again");
    CHECK_FAILS(mp_json_load_file(dir, "good", 6, &root), MP_ERR_MODEL, "E_FILE_SIZE",
                "file 'good' is 7 bytes, need at most 6");
    CHECK_EQ(mp_json_load_optional_file(dir, "none", 99, &root), MP_OK);
    CHECK(root == NULL);
    CHECK_EQ(mp_json_load_optional_file(dir, "dir", 99, &root), MP_ERR_IO);
    CHECK_EQ(mp_json_load_file(dir, "link", 7, &root), MP_OK);
    json_decref(root);

    close(sock);
    close(dir);
    CHECK_EQ(chdir(old), 0);
    snprintf(old, sizeof(old), "rm -r '%s'", path);
    CHECK_EQ(system(old), 0);
}

int main(void)
{
    RUN(values_and_order_are_kept);
    RUN(syntax_errors_name_the_byte);
    RUN(nul_in_strings_is_an_option);
    RUN(duplicate_keys_are_refused_in_any_spelling);
    RUN(depth_needs_64_KiB_of_stack_at_most);
    RUN(entries_of_the_outermost_value_are_bounded);
    RUN(getters_name_key_got_and_need);
    RUN(files_that_are_no_files_are_refused_by_name);
    return 0;
}
