/*
 * What bytes are that a program copies to a device: by the mapped file that they come from, and by
 * where they were copied on the device since.
 */
#include "interpose/cuda/identity.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/cuda/objects.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"

#define ROWS 64u
#define TENSOR (4 * 64 * ROWS)

struct noted {
    unsigned count;
    char *dst[8];
    uint64_t bytes[8], stride[8];
    enum mp_tiers_kind kind[8];
};

static void note(void *ctx, char *dst, uint64_t bytes, enum mp_tiers_kind kind, uint64_t stride)
{
    struct noted *noted = ctx;

    CHECK(noted->count < 8);
    noted->dst[noted->count] = dst;
    noted->bytes[noted->count] = bytes;
    noted->kind[noted->count] = kind;
    noted->stride[noted->count++] = stride;
}

static char *map_file(const char *path, size_t *bytes_p)
{
    const int fd = open(path, O_RDONLY);
    char *at;

    CHECK(fd >= 0);
    *bytes_p = (size_t)lseek(fd, 0, SEEK_END);
    at = mmap(NULL, *bytes_p, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    CHECK(at != MAP_FAILED);
    return at;
}

static void copies_from_a_model_are_known_by_tensor(void)
{
    char path[GGUF_PATH_BYTES], *device = (char *)0x70000000, *file, *data, *other;
    struct noted noted = { 0 };
    size_t bytes, other_bytes;

    gguf_begin(3, 0);
    gguf_tensor("blk.0.attn_q.weight", 64, ROWS, 0, 0);
    gguf_tensor("blk.0.ffn_gate_exps.weight", 64, ROWS, 0, TENSOR);
    gguf_tensor("output.weight", 64, ROWS, 0, 2 * TENSOR);
    gguf_data(3 * TENSOR);
    snprintf(path, sizeof(path), "%s/model.gguf", test_tmpdir());
    gguf_save(path);
    file = map_file(path, &bytes);
    data = file + bytes - 3 * TENSOR;

    mp_identity_find(data, 3 * TENSOR, device, note, &noted);
    CHECK_EQ(noted.count, 3);
    CHECK_EQ(noted.kind[0], MP_TIERS_DENSE);
    CHECK_EQ(noted.kind[1], MP_TIERS_EXPERT);
    CHECK_EQ(noted.kind[2], MP_TIERS_DENSE);
    CHECK(noted.dst[1] == device + TENSOR);
    CHECK_EQ(noted.bytes[1], TENSOR);
    CHECK_EQ(noted.stride[1], TENSOR); /* its third dimension counts one expert */

    /* A part of a tensor, and a bit of the next. */
    noted.count = 0;
    mp_identity_find(data + TENSOR + 256, TENSOR, device, note, &noted);
    CHECK_EQ(noted.count, 2);
    CHECK_EQ(noted.bytes[0], TENSOR - 256);
    CHECK(noted.dst[1] == device + TENSOR - 256);
    CHECK_EQ(noted.bytes[1], 256);

    /* The header is of no tensor. */
    noted.count = 0;
    mp_identity_find(file, 16, device, note, &noted);
    CHECK_EQ(noted.count, 0);

    /* Another file at the same place, after something large was unmapped. */
    snprintf(path, sizeof(path), "%s/other.gguf", test_tmpdir());
    gguf_begin(1, 0);
    gguf_tensor("blk.7.ffn_up_exps.weight", 64, ROWS, 0, 0);
    gguf_data(3 * TENSOR);
    gguf_save(path);
    munmap(file, bytes);
    other = map_file(path, &other_bytes);
    if (other == file) { /* else the kernel puts it elsewhere, and no unit is mapped */
        mp_identity_find(other + other_bytes - 3 * TENSOR, TENSOR, device, note, &noted);
        CHECK_EQ(noted.count, 1);
        CHECK_EQ(noted.kind[0], MP_TIERS_DENSE); /* as it was; it was little */
        noted.count = 0;
        mp_identity_unmapped();
    }
    mp_identity_find(other + other_bytes - 3 * TENSOR, TENSOR, device, note, &noted);
    CHECK_EQ(noted.count, 1);
    CHECK_EQ(noted.kind[0], MP_TIERS_EXPERT);
    munmap(other, other_bytes);
    mp_identity_unmapped();
}

static void other_memory_and_other_files_are_not_known(void)
{
    static const char rubbish[] = "GGUF, but only as far as its magic goes, and nothing behind it";
    char path[GGUF_PATH_BYTES], *own = calloc(1, 1 << 20), *file;
    struct noted noted = { 0 };
    FILE *out;
    size_t bytes;

    mp_identity_find(own, 1 << 20, (char *)0x70000000, note, &noted);
    mp_identity_find(&noted, sizeof(noted), (char *)0x70000000, note, &noted);
    mp_identity_find((void *)16, 16, (char *)0x70000000, note, &noted); /* nothing is there */
    snprintf(path, sizeof(path), "%s/rubbish.gguf", test_tmpdir());
    out = fopen(path, "w");
    CHECK(out != NULL && fwrite(rubbish, sizeof(rubbish), 1, out) == 1 && fclose(out) == 0);
    file = map_file(path, &bytes);
    mp_identity_find(file, bytes, (char *)0x70000000, note, &noted);
    CHECK_EQ(noted.count, 0);
    munmap(file, bytes);
    mp_identity_unmapped();
    free(own);
}

static void count(void *ctx, const struct mp_object *object)
{
    unsigned *counted = ctx;

    CHECK(object->bytes > 0);
    ++*counted;
}

static void objects_follow_copies_on_the_device(void)
{
    struct mp_object object = { .begin = 4096, .bytes = 1024, .kind = MP_TIERS_EXPERT };
    unsigned counted = 0;

    for (unsigned i = 0; i < 3000; i++) { /* more than there is room for at first */
        object.begin = (1 << 20) + i * 1024;
        object.stride = i;
        CHECK(mp_objects_add(&object));
    }
    CHECK(!mp_objects_find((1 << 20) - 1, &object));
    CHECK(mp_objects_find((1 << 20) + 77 * 1024 + 1023, &object));
    CHECK_EQ(object.stride, 77);
    mp_objects_copy(8 << 20, (1 << 20) + 10 * 1024, 5 * 1024 - 1, count, &counted);
    CHECK_EQ(counted, 4); /* the fifth is not there as a whole */
    CHECK(mp_objects_find((8 << 20) + 3 * 1024, &object));
    CHECK_EQ(object.stride, 13);
    CHECK(!mp_objects_find((8 << 20) + 4 * 1024, &object));
    mp_objects_forget(8 << 20, 2 * 1024);
    CHECK(!mp_objects_find(8 << 20, &object));
    CHECK(mp_objects_find((8 << 20) + 2 * 1024, &object));
}

/* What cannot be looked at is not known, and nothing else happens. */
static void identity_body(const struct fault_plan *plan, void *ctx)
{
    static unsigned number;
    const struct mp_object object = { .begin = (uintptr_t)64 << 40 | number << 12, .bytes = 1 };
    char path[GGUF_PATH_BYTES], *file;
    struct noted noted = { 0 };
    uint64_t failures;
    size_t bytes;

    (void)ctx;
    snprintf(path, sizeof(path), "%s/model-%u.gguf", test_tmpdir(), number++);
    gguf_save(path);
    file = map_file(path, &bytes);
    fault_begin(plan);
    mp_identity_find(file + bytes - 3 * TENSOR, 3 * TENSOR, (char *)0x70000000, note, &noted);
    (void)mp_objects_add(&object);
    failures = fault_end();
    CHECK(noted.count == 3 || (noted.count == 0 && failures > 0));
    munmap(file, bytes);
    mp_identity_unmapped();
}

static void every_call_fails_once(void)
{
    gguf_begin(3, 0);
    gguf_tensor("blk.0.attn_q.weight", 64, ROWS, 0, 0);
    gguf_tensor("blk.0.ffn_gate_exps.weight", 64, ROWS, 0, TENSOR);
    gguf_tensor("output.weight", 64, ROWS, 0, 2 * TENSOR);
    gguf_data(3 * TENSOR);
    CHECK(fault_sweep(FAULT_ANY, identity_body, NULL) > 5);
}

int main(void)
{
    RUN(copies_from_a_model_are_known_by_tensor);
    RUN(other_memory_and_other_files_are_not_known);
    RUN(objects_follow_copies_on_the_device);
    RUN(every_call_fails_once);
    return 0;
}
