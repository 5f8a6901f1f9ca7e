/* Files: reads, identities, and errors that name file and byte. */
#include "vmm/io/file.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

/* Every byte of every file follows from its place, so that a byte at a wrong place is seen. */
static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 2654435761u >> 13);
}

static void write_file(int dir, const char *name, uint64_t bytes)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    unsigned char buffer[4096];

    CHECK(fd >= 0);
    for (uint64_t done = 0; done < bytes;) {
        size_t n = bytes - done < sizeof(buffer) ? (size_t)(bytes - done) : sizeof(buffer);

        for (size_t i = 0; i < n; i++)
            buffer[i] = byte_at(done + i);
        CHECK_EQ(write(fd, buffer, n), n);
        done += n;
    }
    CHECK_EQ(close(fd), 0);
}

static int make_dir(const char *name)
{
    char path[4200];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    CHECK_EQ(mkdir(path, 0755), 0);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static struct mp_files *files_new(void)
{
    struct mp_files *files = NULL;

    CHECK_EQ(mp_files_create(&files), MP_OK);
    return files;
}

static struct mp_files *files_with(int dir, const char *name, uint64_t bytes)
{
    struct mp_files *files = files_new();
    uint32_t index = 99;

    write_file(dir, name, bytes);
    CHECK_EQ(mp_files_add(files, dir, name, &index), MP_OK);
    CHECK_EQ(index, 0);
    return files;
}

static void check_error(enum mp_status status, const char *code, const char *part)
{
    CHECK_EQ(status, MP_ERR_IO);
    CHECK_EQ(mp_error_last()->status, MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, code);
    if (strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "\"%s\" lacks \"%s\"\n", mp_error_last()->text, part);
        exit(1);
    }
    mp_error_clear();
}

static void read_returns_exactly_the_bytes_of_the_file(void)
{
    const uint64_t bytes = 3 * 4096 + 17;
    int dir = make_dir("read");
    struct mp_files *files = files_with(dir, "a", bytes);
    unsigned char buffer[3 * 4096 + 17 + 1];
    const uint64_t cases[][2] = { { 0, bytes }, { 0, 1 },     { 4095, 2 },
                                  { 1, 4096 },  { bytes, 0 }, { bytes - 1, 1 } };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        memset(buffer, 0x5a, sizeof(buffer));
        CHECK_EQ(mp_files_read(files, 0, cases[c][0], cases[c][1], buffer), MP_OK);
        for (uint64_t i = 0; i < cases[c][1]; i++)
            CHECK_EQ(buffer[i], byte_at(cases[c][0] + i));
        CHECK_EQ(buffer[cases[c][1]], 0x5a);
    }
    CHECK_EQ(mp_files_bytes(files, 0), bytes);
    CHECK((fcntl(mp_files_fd(files, 0), F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == O_RDONLY);
    CHECK((fcntl(mp_files_fd(files, 0), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_STR(mp_files_name(files, 0), "a");
    mp_files_destroy(files);
    close(dir);
}

static void read_beyond_the_end_names_file_and_byte(void)
{
    int dir = make_dir("beyond");
    struct mp_files *files = files_with(dir, "short.bin", 100);
    char buffer[200];
    int fd;

    check_error(mp_files_read(files, 0, 50, 51, buffer), "E_TRUNCATED",
                "'short.bin' ends at byte 100: need 101");
    check_error(mp_files_read(files, 0, 101, 0, buffer), "E_TRUNCATED", "byte 100");
    check_error(mp_files_read(files, 0, UINT64_MAX, 2, buffer), "E_TRUNCATED", "byte 100");
    check_error(mp_files_read(files, 0, 1, UINT64_MAX, buffer), "E_TRUNCATED", "byte 100");

    /* Became shorter while open: found by the read itself. */
    fd = openat(dir, "short.bin", O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 60), 0);
    CHECK_EQ(close(fd), 0);
    check_error(mp_files_read(files, 0, 50, 50, buffer), "E_TRUNCATED", "ends at byte 60");
    mp_files_destroy(files);
    close(dir);
}

static void add_numbers_files_and_survives_many(void)
{
    int dir = make_dir("many");
    struct mp_files *files = files_new();

    for (uint32_t i = 0; i < 40; i++) {
        char name[32];
        uint32_t index = 99;

        snprintf(name, sizeof(name), "shard-%u", i);
        write_file(dir, name, i);
        CHECK_EQ(mp_files_add(files, dir, name, &index), MP_OK);
        CHECK_EQ(index, i);
    }
    CHECK_EQ(mp_files_count(files), 40);
    CHECK_EQ(mp_files_bytes(files, 39), 39);
    CHECK_STR(mp_files_name(files, 7), "shard-7");
    close(dir);
    for (uint32_t i = 0; i < 40; i++)
        CHECK_EQ(mp_files_check(files, i), MP_OK);
    mp_files_destroy(files);
}

static void add_refuses_what_is_no_regular_file_without_blocking(void)
{
    int dir = make_dir("kinds");
    struct mp_files *files = files_new();
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint32_t index = 99;

    CHECK_EQ(mkdirat(dir, "d", 0755), 0);
    CHECK_EQ(mkfifoat(dir, "fifo", 0644), 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/sock", dir);
    CHECK(sock >= 0);
    CHECK_EQ(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);

    check_error(mp_files_add(files, dir, "d", &index), "E_NOT_A_FILE", "'d' is a directory");
    check_error(mp_files_add(files, dir, "fifo", &index), "E_NOT_A_FILE", "a FIFO");
    check_error(mp_files_add(files, dir, "sock", &index), "E_NOT_A_FILE", "a socket");
    check_error(mp_files_add(files, dir, "/dev/zero", &index), "E_NOT_A_FILE", "character device");
    check_error(mp_files_add(files, dir, "none", &index), "E_OPEN", "'none': ENOENT");
    check_error(mp_files_add(files, dir, "", &index), "E_OPEN", "ENOENT");
    check_error(mp_files_add(files, -1, "x", &index), "E_OPEN", "EBADF");
    if (geteuid() != 0) {
        write_file(dir, "secret", 1);
        CHECK_EQ(fchmodat(dir, "secret", 0, 0), 0);
        check_error(mp_files_add(files, dir, "secret", &index), "E_OPEN", "EACCES");
    }
    CHECK_EQ(index, 99);
    CHECK_EQ(mp_files_count(files), 0);
    mp_files_destroy(files);
    mp_files_destroy(NULL);
    close(sock);
    close(dir);
}

static void names_in_messages_are_escaped(void)
{
    int dir = make_dir("escape");
    struct mp_files *files = files_new();
    uint32_t index;

    check_error(mp_files_add(files, dir, "a\n\x1b[31m'", &index), "E_OPEN", "'a\\x0a\\x1b[31m\\''");
    mp_files_destroy(files);
    close(dir);
}

static void check_finds_truncated_rewritten_and_replaced(void)
{
    int dir = make_dir("changed");
    struct timespec times[2] = { { 0, UTIME_OMIT }, { 12345, 678 } };
    struct mp_files *files = files_with(dir, "m", 5000);

    CHECK_EQ(mp_files_check(files, 0), MP_OK);

    CHECK_EQ(utimensat(dir, "m", times, 0), 0);
    check_error(mp_files_check(files, 0), "E_FILE_CHANGED", "modified 12345.000000678");
    mp_files_destroy(files);

    files = files_with(dir, "m", 5000);
    write_file(dir, "m", 4000);
    check_error(mp_files_check(files, 0), "E_FILE_CHANGED",
                "model file changed on disk: 'm' has 4000 bytes");
    check_error(mp_files_check(files, 0), "E_FILE_CHANGED", "had 5000 bytes");
    mp_files_destroy(files);

    /* The open file is untouched, only the name leads elsewhere. */
    files = files_with(dir, "m", 5000);
    write_file(dir, "new", 5000);
    CHECK_EQ(renameat(dir, "new", dir, "m"), 0);
    check_error(mp_files_check(files, 0), "E_FILE_CHANGED", "'m' has 5000 bytes");
    mp_files_destroy(files);
    close(dir);
}

static void removed_file_stays_readable(void)
{
    int dir = make_dir("removed");
    struct mp_files *files = files_with(dir, "m", 5000);
    unsigned char byte;

    CHECK_EQ(unlinkat(dir, "m", 0), 0);
    CHECK_EQ(mp_files_check(files, 0), MP_OK);
    CHECK_EQ(mp_files_read(files, 0, 4999, 1, &byte), MP_OK);
    CHECK_EQ(byte, byte_at(4999));
    mp_files_destroy(files);
    close(dir);
}

static void check_works_after_chdir(void)
{
    char old[4096];
    struct mp_files *files;

    CHECK(getcwd(old, sizeof(old)) != NULL);
    CHECK_EQ(chdir(test_tmpdir()), 0);
    files = files_with(AT_FDCWD, "relative", 10);
    CHECK_EQ(chdir("/"), 0);
    CHECK_EQ(mp_files_check(files, 0), MP_OK);
    CHECK_EQ(chdir(old), 0);
    mp_files_destroy(files);
}

static void direct_descriptor_reads_the_same_bytes_or_is_absent(void)
{
    int dir = make_dir("direct");
    struct mp_files *files = files_with(dir, "m", 3 * 65536 + 5);
    uint32_t align = 0, again = 0, none = 7, index;
    unsigned char *block;
    int fd = mp_files_direct_fd(files, 0, &align);

    CHECK_EQ(mp_files_direct_fd(files, 0, &again), fd);
    CHECK_EQ(again, align);
    if (fd >= 0) {
        CHECK(align >= 4096 && align <= 65536 && (align & (align - 1)) == 0);
        CHECK((fcntl(fd, F_GETFL) & O_DIRECT) != 0);
        CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
        CHECK_EQ(posix_memalign((void **)&block, 65536, 65536), 0);
        CHECK_EQ(pread(fd, block, 65536, 65536), 65536);
        for (uint32_t i = 0; i < 65536; i++)
            CHECK_EQ(block[i], byte_at(65536 + i));
        CHECK_EQ(pread(fd, block, 65536, 3 * 65536), 5);
        free(block);
    } else {
        fprintf(stderr, "    no O_DIRECT in %s\n", test_tmpdir());
    }

    /* Nothing to prove it with. */
    write_file(dir, "empty", 0);
    CHECK_EQ(mp_files_add(files, dir, "empty", &index), MP_OK);
    CHECK_EQ(mp_files_direct_fd(files, index, &none), -1);

    /* Replaced between open and probe: the descriptor must not lead to the other file. */
    write_file(dir, "n", 8192);
    CHECK_EQ(mp_files_add(files, dir, "n", &index), MP_OK);
    write_file(dir, "o", 8192);
    CHECK_EQ(renameat(dir, "o", dir, "n"), 0);
    CHECK_EQ(mp_files_direct_fd(files, index, &none), -1);
    CHECK_EQ(none, 7);
    mp_files_destroy(files);
    close(dir);
}

/* In a process that began without standard input the first file has descriptor 0. */
static void every_descriptor_is_closed(void)
{
    const int dir = make_dir("zero"), kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    struct mp_files *files = files_new();
    char path[4200];
    uint32_t index;

    snprintf(path, sizeof(path), "%s/zero/z", test_tmpdir());
    write_file(dir, "z", 10);
    close(0);
    CHECK_EQ(mp_files_add(files, AT_FDCWD, path, &index), MP_OK);
    CHECK_EQ(mp_files_fd(files, 0), 0);
    mp_files_destroy(files);
    CHECK_EQ(fcntl(0, F_GETFD), -1);
    if (kept >= 0) {
        CHECK_EQ(dup2(kept, 0), 0);
        close(kept);
    }
    close(dir);
}

static void offsets_beyond_4_gib_work(void)
{
    const uint64_t offset = UINT64_C(5) << 30;
    int dir = make_dir("large");
    struct mp_files *files = files_new();
    int fd = openat(dir, "sparse", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    char text[5] = { 0 };
    uint32_t index;

    CHECK(fd >= 0);
    if (pwrite(fd, "moe!", 4, (off_t)offset) != 4)
        SKIP("the file system has no files over 4 GiB");
    CHECK_EQ(close(fd), 0);
    CHECK_EQ(mp_files_add(files, dir, "sparse", &index), MP_OK);
    CHECK_EQ(mp_files_bytes(files, 0), offset + 4);
    CHECK_EQ(mp_files_read(files, 0, offset, 4, text), MP_OK);
    CHECK_STR(text, "moe!");
    mp_files_destroy(files);
    close(dir);
}

int main(void)
{
    RUN(read_returns_exactly_the_bytes_of_the_file);
    RUN(read_beyond_the_end_names_file_and_byte);
    RUN(add_numbers_files_and_survives_many);
    RUN(add_refuses_what_is_no_regular_file_without_blocking);
    RUN(names_in_messages_are_escaped);
    RUN(check_finds_truncated_rewritten_and_replaced);
    RUN(removed_file_stays_readable);
    RUN(check_works_after_chdir);
    RUN(direct_descriptor_reads_the_same_bytes_or_is_absent);
    RUN(every_descriptor_is_closed);
    RUN(offsets_beyond_4_gib_work);
    return 0;
}
