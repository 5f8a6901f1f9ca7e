/*
 * ELF files: this program, the small ones of the fuzzer's corpus, the same cut at every byte and
 * for other machines; every allocation and every read fails once.
 */
#include "vmm/format/elf.h"

#include <elf.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define CORPUS "tests/data/fuzz/elf_fuzz/"

struct file {
    unsigned char *data;
    size_t bytes;
    unsigned reads_left; /* that succeed */
};

static bool read_file(void *context, uint64_t offset, uint64_t bytes, void *dst)
{
    struct file *file = context;

    CHECK(offset <= file->bytes && bytes <= file->bytes - offset);
    if (file->reads_left == 0)
        return false;
    file->reads_left--;
    memcpy(dst, file->data + offset, bytes);
    return true;
}

static struct file load(const char *path)
{
    struct file file = { .reads_left = UINT32_MAX };
    FILE *from = fopen(path, "r");

    CHECK(from != NULL);
    file.data = malloc(64u << 20);
    CHECK(file.data != NULL);
    file.bytes = fread(file.data, 1, 64u << 20, from);
    fclose(from);
    return file;
}

static struct mp_elf_source source_of(struct file *file)
{
    return (struct mp_elf_source){ read_file, file, file->bytes };
}

static void a_program_and_a_library(void)
{
    static const char *const names[] = { "moepager_open", "g", "other", "_start" };
    struct file file = load(CORPUS "program");
    struct mp_elf_source source = source_of(&file);
    struct mp_elf elf;
    bool found[4];

    CHECK(mp_elf_is(&source));
    CHECK_EQ(mp_elf_read(&source, "f", &elf), MP_OK);
    CHECK(!elf.foreign && elf.dynamic);
    CHECK_STR(elf.interpreter, "/lib64/ld-linux-x86-64.so.2");
    CHECK_EQ(elf.needed_count, 1);
    CHECK_STR(elf.needed[0], "./lib.so");
    CHECK(elf.run_path == NULL);
    mp_elf_fini(&elf);
    free(file.data);

    file = load(CORPUS "library");
    source = source_of(&file);
    CHECK_EQ(mp_elf_read(&source, "f", &elf), MP_OK);
    CHECK(elf.interpreter == NULL && elf.dynamic);
    CHECK_STR(elf.run_path, "$ORIGIN");
    mp_elf_fini(&elf);
    CHECK_EQ(mp_elf_find_exports(&source, "f", names, 4, found), MP_OK);
    CHECK(found[0] && found[1] && !found[2] && !found[3]);
    free(file.data);
}

static void a_static_program_and_others(void)
{
    struct file file = load(CORPUS "static");
    struct mp_elf_source source = source_of(&file);
    struct mp_elf elf;

    CHECK_EQ(mp_elf_read(&source, "f", &elf), MP_OK);
    CHECK(!elf.dynamic && elf.interpreter == NULL);
    mp_elf_fini(&elf);
    file.data[EI_DATA] = ELFDATA2MSB;
    file.data[18] = 0, file.data[19] = EM_S390;
    CHECK_EQ(mp_elf_read(&source, "f", &elf), MP_OK);
    CHECK(elf.foreign);
    CHECK_EQ(elf.machine, EM_S390);
    mp_elf_fini(&elf);
    file.data[0] = 'x';
    CHECK(!mp_elf_is(&source));
    file.data[0] = 0x7f;
    source.file_bytes = SELFMAG; /* so many are enough to be one */
    CHECK(mp_elf_is(&source));
    source.file_bytes = SELFMAG - 1;
    CHECK(!mp_elf_is(&source));
    source = source_of(&file);
    file.data[0] = 'x';
    CHECK_EQ(mp_elf_read(&source, "f", &elf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_ELF");
    free(file.data);
}

/* Cut anywhere it is refused, or has whole names; nothing outside is read. */
static void cut_at_every_byte(void)
{
    static const char *const names[] = { "g" };
    struct file file = load(CORPUS "library");
    const size_t whole = file.bytes;
    unsigned refused = 0;
    bool found[1];

    for (file.bytes = 0; file.bytes < whole; file.bytes++) {
        const struct mp_elf_source source = source_of(&file);
        struct mp_elf elf;

        refused += mp_elf_read(&source, "f", &elf) != MP_OK;
        mp_elf_fini(&elf);
        CHECK_EQ(mp_elf_find_exports(&source, "f", names, 1, found), MP_ERR_MODEL);
    }
    CHECK(refused > 64);
    free(file.data);
}

/* Each byte of the header and the tables set to the largest value. */
static void numbers_are_not_believed(void)
{
    struct file file = load(CORPUS "program");
    const struct mp_elf_source source = source_of(&file);
    unsigned refused = 0;

    for (size_t i = 0; i < file.bytes; i++) {
        const unsigned char was = file.data[i];
        struct mp_elf elf;

        file.data[i] = 0xff;
        refused += mp_elf_read(&source, "f", &elf) != MP_OK;
        mp_elf_fini(&elf);
        file.data[i] = was;
    }
    CHECK(refused > 30);
    free(file.data);
}

static void every_read_fails_once(void)
{
    static const char *const names[] = { "g" };
    struct file file = load(CORPUS "program");
    const struct mp_elf_source source = source_of(&file);
    enum mp_status status = MP_ERR_IO;
    struct mp_elf elf;
    bool found[1];
    unsigned n = 0;

    for (; status != MP_OK; n++) {
        file.reads_left = n;
        status = mp_elf_read(&source, "f", &elf);
        CHECK(status == MP_OK || strcmp(mp_error_last()->code, "E_READ") == 0);
        CHECK(status == MP_OK || elf.block == NULL);
        mp_elf_fini(&elf);
    }
    CHECK(n > 4);
    status = MP_ERR_IO;
    for (n = 0; status != MP_OK; n++) {
        file.reads_left = n;
        status = mp_elf_find_exports(&source, "f", names, 1, found);
    }
    CHECK(n > 3);
    free(file.data);
}

static void every_allocation_fails_once(void)
{
    static const char *const names[] = { "g" };
    struct file file = load(CORPUS "library");
    const struct mp_elf_source source = source_of(&file);
    enum mp_status status;
    struct mp_elf elf;
    bool found[1];

    for (uint64_t n = 0;; n++) {
        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_elf_read(&source, "f", &elf);
        if (status == MP_OK)
            status = mp_elf_find_exports(&source, "f", names, 1, found);
        if (fault_end() == 0)
            break;
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        mp_elf_fini(&elf);
    }
    CHECK_EQ(status, MP_OK);
    mp_elf_fini(&elf);
    free(file.data);
}

int main(void)
{
    RUN(a_program_and_a_library);
    RUN(a_static_program_and_others);
    RUN(cut_at_every_byte);
    RUN(numbers_are_not_believed);
    RUN(every_read_fails_once);
    RUN(every_allocation_fails_once);
    return 0;
}
