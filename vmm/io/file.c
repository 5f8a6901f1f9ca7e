/*
 * The files of a model: opened once, identified, read. Keeps at most two descriptors per file and
 * maps nothing.
 */
#include "vmm/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"
#include "vmm/base/log.h"
#include "vmm/io/file_int.h"

#define OPEN_FLAGS (O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)

/* What distinguishes one state of a file from another. */
struct identity {
    dev_t device;
    ino_t inode;
    uint64_t bytes;
    struct timespec modified;
};

enum direct_state { DIRECT_UNKNOWN, DIRECT_NO, DIRECT_YES };

struct file {
    char *name;
    int dir_fd;    /* what `name` is relative to, also after chdir() or close() by the caller */
    bool owns_dir; /* else the descriptor is the previous file's, or AT_FDCWD */
    int fd;
    struct identity opened;

    /* The probe writes the two fields below, then releases the state; whoever acquires
     * DIRECT_YES may read them without the lock. */
    _Atomic(int) direct;
    int direct_fd;
    uint32_t direct_align_bytes;
};

struct mp_files {
    struct file *files;
    uint32_t count, capacity;
    struct mp_mutex probe_lock; /* one probe at a time; protects the fields named above */
};

static const char *errno_text(int error_number)
{
    const char *text = strerrordesc_np(error_number);

    return text != NULL ? text : "unknown error";
}

bool mp_read_again(struct mp_read_tries *tries, int error_number)
{
    mp_assert(error_number > 0);
    if (error_number == EINTR || error_number == EAGAIN)
        return ++tries->interrupted < MP_READ_INTR_TRIES;
    if (error_number == EIO)
        return ++tries->eio < MP_READ_EIO_TRIES;
    return false;
}

static const char *read_advice(int error_number)
{
    switch (error_number) {
    case EIO: return "the disk or its file system is failing, look into the kernel log";
    case ESTALE: return "the network file system lost the file, start again";
    default: return "check the file and its file system";
    }
}

enum mp_status mp_files_fail_read(const struct mp_files *files, uint32_t index, uint64_t offset,
                                  int error_number)
{
    const char *name = mp_files_name(files, index);
    char quoted[MP_QUOTE_BYTES], number[32];

    mp_assert(index < files->count && error_number > 0);
    return mp_fail(MP_ERR_IO, "E_READ", "cannot read '%s' at byte %" PRIu64 ": %s (%s); %s",
                   mp_quote(quoted, name, strlen(name)), offset,
                   mp_errno_name(number, error_number), errno_text(error_number),
                   read_advice(error_number));
}

enum mp_status mp_files_fail_truncated(const struct mp_files *files, uint32_t index,
                                       uint64_t end_offset, uint64_t need_offset)
{
    const char *name = mp_files_name(files, index);
    char quoted[MP_QUOTE_BYTES];
    struct stat st;

    mp_assert(index < files->count);
    if (fstat(files->files[index].fd, &st) == 0 && (uint64_t)st.st_size < end_offset)
        end_offset = (uint64_t)st.st_size;
    return mp_fail(MP_ERR_IO, "E_TRUNCATED",
                   "file '%s' ends at byte %" PRIu64 ": need %" PRIu64
                   " bytes; copy or download the file again",
                   mp_quote(quoted, name, strlen(name)), end_offset, need_offset);
}

static enum mp_status fail_open(const char *name, const char *what, int error_number)
{
    char quoted[MP_QUOTE_BYTES], number[32];
    const char *advice = error_number == EMFILE || error_number == ENFILE
                             ? "raise the limit on open files (ulimit -n)"
                             : "check the path and its permissions";

    mp_assert(error_number > 0);
    return mp_fail(MP_ERR_IO, "E_OPEN", "cannot %s '%s': %s (%s); %s", what,
                   mp_quote(quoted, name, strlen(name)), mp_errno_name(number, error_number),
                   errno_text(error_number), advice);
}

static const char *describe_mode(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR: return "a directory";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    case S_IFCHR: return "a character device";
    case S_IFBLK: return "a block device";
    default: return "of an unknown type";
    }
}

static enum mp_status check_regular(const char *name, mode_t mode)
{
    char quoted[MP_QUOTE_BYTES];

    if (S_ISREG(mode))
        return MP_OK;
    return mp_fail(MP_ERR_IO, "E_NOT_A_FILE", "'%s' is %s: need a regular file",
                   mp_quote(quoted, name, strlen(name)), describe_mode(mode));
}

static struct identity identity_of(const struct stat *st)
{
    return (struct identity){
        .device = st->st_dev,
        .inode = st->st_ino,
        .bytes = (uint64_t)st->st_size,
        .modified = st->st_mtim,
    };
}

static bool identity_equal(const struct identity *a, const struct identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

enum mp_status mp_files_create(struct mp_files **files_p)
{
    struct mp_files *files = calloc(1, sizeof(*files));

    if (files == NULL)
        return mp_fail_no_memory("the list of model files", sizeof(*files));
    mp_mutex_init(&files->probe_lock, MP_LOCK_LEAF, "files.probe");
    *files_p = files;
    return MP_OK;
}

static void file_close(struct file *file)
{
    mp_assert(file->fd >= 0 ||
              atomic_load_explicit(&file->direct, memory_order_relaxed) != DIRECT_YES);
    if (atomic_load_explicit(&file->direct, memory_order_relaxed) == DIRECT_YES)
        close(file->direct_fd);
    if (file->fd >= 0)
        close(file->fd);
    if (file->owns_dir)
        close(file->dir_fd);
    free(file->name);
}

void mp_files_destroy(struct mp_files *files)
{
    if (files == NULL)
        return;
    /* Backwards: a file may use the directory of the one before it. */
    for (uint32_t i = files->count; i-- > 0;)
        file_close(&files->files[i]);
    mp_mutex_fini(&files->probe_lock);
    free(files->files);
    free(files);
}

static enum mp_status files_grow(struct mp_files *files)
{
    const uint32_t capacity = files->capacity == 0 ? 8 : files->capacity * 2;
    struct file *grown;

    if (files->count < files->capacity)
        return MP_OK;
    if (capacity < files->capacity)
        return mp_fail(MP_ERR_OVERFLOW, "E_TOO_MANY_FILES", "more than %" PRIu32 " model files",
                       files->count);
    grown = realloc(files->files, (size_t)capacity * sizeof(*grown));
    if (grown == NULL)
        return mp_fail_no_memory("the list of model files", (uint64_t)capacity * sizeof(*grown));
    files->files = grown;
    files->capacity = capacity;
    mp_assert(files->count < files->capacity);
    return MP_OK;
}

/*
 * Keep the directory, so that the later check looks at the same path. All files of a model usually
 * lie in one, so the descriptor of the file before is taken where it is the same directory.
 */
static enum mp_status keep_dir(const struct mp_files *files, struct file *file, int dir_fd)
{
    struct stat mine, other;
    int fd;

    mp_assert(file->name != NULL);
    file->dir_fd = AT_FDCWD;
    if (file->name[0] == '/')
        return MP_OK;
    fd = openat(dir_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_open(file->name, "open the directory of", errno);
    file->dir_fd = fd;
    file->owns_dir = true;
    if (files->count == 0 || files->files[files->count - 1].dir_fd == AT_FDCWD)
        return MP_OK;
    if (fstat(fd, &mine) != 0 || fstat(files->files[files->count - 1].dir_fd, &other) != 0)
        return MP_OK; /* One descriptor more, nothing else. */
    if (mine.st_dev == other.st_dev && mine.st_ino == other.st_ino) {
        close(fd);
        file->dir_fd = files->files[files->count - 1].dir_fd;
        file->owns_dir = false;
    }
    return MP_OK;
}

static enum mp_status file_open(struct file *file)
{
    enum mp_status status;
    struct stat st;

    mp_assert(file->fd < 0);
    /* Looked at before it is opened: opening a device can already do something. */
    if (fstatat(file->dir_fd, file->name, &st, 0) != 0)
        return fail_open(file->name, "open", errno);
    status = check_regular(file->name, st.st_mode);
    if (status != MP_OK)
        return status;

    file->fd = openat(file->dir_fd, file->name, OPEN_FLAGS);
    if (file->fd < 0)
        return fail_open(file->name, "open", errno);
    if (fstat(file->fd, &st) != 0)
        return fail_open(file->name, "get the size of", errno);
    status = check_regular(file->name, st.st_mode);
    if (status != MP_OK)
        return status;
    /* O_NONBLOCK was for the open alone; with it io_uring may return EAGAIN instead of waiting. */
    if (fcntl(file->fd, F_SETFL, 0) != 0)
        return fail_open(file->name, "set up", errno);
    file->opened = identity_of(&st);
    return MP_OK;
}

/* Room for one more, and a file of that name that is not open. */
static enum mp_status file_begin(struct mp_files *files, const char *name, struct file *file)
{
    const size_t name_bytes = strlen(name) + 1;
    enum mp_status status;

    mp_assert(name != NULL);
    *file = (struct file){ .fd = -1, .direct_fd = -1, .dir_fd = AT_FDCWD };
    status = files_grow(files);
    if (status != MP_OK)
        return status;
    file->name = malloc(name_bytes);
    if (file->name == NULL)
        return mp_fail_no_memory("a file name", name_bytes);
    memcpy(file->name, name, name_bytes);
    return MP_OK;
}

enum mp_status mp_files_add_virtual(struct mp_files *files, const char *name, uint64_t bytes,
                                    uint32_t *index_p)
{
    struct file file;
    const enum mp_status status = file_begin(files, name, &file);

    if (status != MP_OK)
        return status;
    file.opened.bytes = bytes;
    atomic_init(&file.direct, DIRECT_NO);
    *index_p = files->count;
    files->files[files->count++] = file;
    return MP_OK;
}

enum mp_status mp_files_add(struct mp_files *files, int dir_fd, const char *name, uint32_t *index_p)
{
    struct file file;
    enum mp_status status = file_begin(files, name, &file);

    if (status != MP_OK)
        return status;
    status = keep_dir(files, &file, dir_fd);
    if (status == MP_OK)
        status = file_open(&file);
    if (status != MP_OK) {
        file_close(&file);
        return status;
    }
    *index_p = files->count;
    files->files[files->count++] = file;
    return MP_OK;
}

uint32_t mp_files_count(const struct mp_files *files)
{
    return files->count;
}

uint64_t mp_files_bytes(const struct mp_files *files, uint32_t index)
{
    mp_assert(index < files->count);
    return files->files[index].opened.bytes;
}

const char *mp_files_name(const struct mp_files *files, uint32_t index)
{
    mp_assert(index < files->count);
    return files->files[index].name;
}

int mp_files_fd(const struct mp_files *files, uint32_t index)
{
    mp_assert(index < files->count);
    return files->files[index].fd;
}

/* 0, or the errno that says why not. */
static int probe(struct file *file)
{
    const int fd = openat(file->dir_fd, file->name, OPEN_FLAGS | O_DIRECT);
    struct identity identity;
    struct stat st;
    int error_number;

    mp_assert(file->direct_fd < 0);
    if (fd < 0)
        return errno;
    if (fstat(fd, &st) != 0 || fcntl(fd, F_SETFL, O_DIRECT) != 0) {
        error_number = errno;
        goto err_close;
    }
    /* The name was opened a second time: it must still be the same file. */
    identity = identity_of(&st);
    error_number = ESTALE;
    if (!identity_equal(&identity, &file->opened))
        goto err_close;
    file->direct_align_bytes = mp_file_direct_align(fd, file->opened.bytes);
    error_number = errno;
    if (file->direct_align_bytes == 0)
        goto err_close;
    file->direct_fd = fd;
    return 0;

err_close:
    close(fd);
    return error_number;
}

static enum direct_state probe_locked(struct file *file)
{
    char quoted[MP_QUOTE_BYTES], number[32];
    const int error_number = probe(file);

    if (error_number == 0)
        return DIRECT_YES;
    mp_log_info("file", "no direct reads of '%s': %s; its reads go through the page cache",
                mp_quote(quoted, file->name, strlen(file->name)),
                mp_errno_name(number, error_number));
    return DIRECT_NO;
}

int mp_files_direct_fd(struct mp_files *files, uint32_t index, uint32_t *align_bytes_p)
{
    struct file *file = &files->files[index];
    int state = atomic_load_explicit(&file->direct, memory_order_acquire);

    mp_assert(index < files->count);
    if (state == DIRECT_UNKNOWN) {
        mp_lock(&files->probe_lock);
        state = atomic_load_explicit(&file->direct, memory_order_relaxed);
        if (state == DIRECT_UNKNOWN) {
            state = probe_locked(file);
            atomic_store_explicit(&file->direct, state, memory_order_release);
        }
        mp_unlock(&files->probe_lock);
    }
    if (state == DIRECT_NO)
        return -1;
    *align_bytes_p = file->direct_align_bytes;
    return file->direct_fd;
}

static enum mp_status check_identity(const struct file *file, const struct stat *st)
{
    const struct identity now = identity_of(st);
    const struct identity *was = &file->opened;
    char quoted[MP_QUOTE_BYTES];

    mp_assert(file->name != NULL);
    if (identity_equal(&now, was))
        return MP_OK;
    return mp_fail(MP_ERR_IO, "E_FILE_CHANGED",
                   "model file changed on disk: '%s' has %" PRIu64
                   " bytes, inode %ju, modified %jd.%09ld; had %" PRIu64
                   " bytes, inode %ju, modified %jd.%09ld; start again with the new file",
                   mp_quote(quoted, file->name, strlen(file->name)), now.bytes,
                   (uintmax_t)now.inode, (intmax_t)now.modified.tv_sec, now.modified.tv_nsec,
                   was->bytes, (uintmax_t)was->inode, (intmax_t)was->modified.tv_sec,
                   was->modified.tv_nsec);
}

enum mp_status mp_files_check(const struct mp_files *files, uint32_t index)
{
    const struct file *file = &files->files[index];
    enum mp_status status;
    struct stat st;

    mp_assert(index < files->count);
    if (fstat(file->fd, &st) != 0)
        return fail_open(file->name, "check", errno);
    status = check_identity(file, &st);
    if (status != MP_OK)
        return status;
    if (fstatat(file->dir_fd, file->name, &st, 0) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return MP_OK;
        return fail_open(file->name, "check", errno);
    }
    return check_identity(file, &st);
}

enum mp_status mp_files_read(const struct mp_files *files, uint32_t index, uint64_t offset,
                             uint64_t bytes, void *dst)
{
    const struct file *file = &files->files[index];
    struct mp_read_tries tries = { 0 };
    uint64_t done = 0;

    mp_assert(index < files->count);
    mp_assert(dst != NULL || bytes == 0);
    if (offset > file->opened.bytes || bytes > file->opened.bytes - offset)
        return mp_files_fail_truncated(files, index, file->opened.bytes,
                                       bytes > UINT64_MAX - offset ? UINT64_MAX : offset + bytes);
    while (done < bytes) {
        const uint64_t rest = bytes - done;
        const uint64_t want = rest < MP_READ_CALL_BYTES_MAX ? rest : MP_READ_CALL_BYTES_MAX;
        const ssize_t got = pread(file->fd, (char *)dst + done, want, (off_t)(offset + done));

        if (got > 0) {
            done += (uint64_t)got;
            tries = (struct mp_read_tries){ 0 };
        } else if (got == 0) {
            return mp_files_fail_truncated(files, index, offset + done, offset + bytes);
        } else if (!mp_read_again(&tries, errno)) {
            return mp_files_fail_read(files, index, offset + done, errno);
        }
    }
    return MP_OK;
}
