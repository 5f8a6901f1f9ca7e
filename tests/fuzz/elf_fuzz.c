/*
 * Programs and libraries as a hostile file has them. What is accepted has names that end; what is
 * refused has said why.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/text.h"
#include "vmm/base/error.h"
#include "vmm/format/elf.h"

struct bytes {
    const uint8_t *data;
    size_t count;
};

static bool read_bytes(void *context, uint64_t offset, uint64_t bytes, void *dst)
{
    const struct bytes *from = context;

    FUZZ_CHECK(offset <= from->count && bytes <= from->count - offset);
    memcpy(dst, from->data + offset, bytes);
    return true;
}

static void check_refused(void)
{
    FUZZ_CHECK(mp_error_last()->status == MP_ERR_MODEL);
    FUZZ_CHECK(strcmp(mp_error_last()->code, "E_ELF") == 0);
    fuzz_check_message(mp_error_last()->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = { "main", "moepager_open" };
    struct bytes from = { data, bytes };
    const struct mp_elf_source source = { read_bytes, &from, bytes };
    struct mp_elf elf;
    bool found[2];
    size_t length = 0;

    mp_error_clear();
    (void)mp_elf_is(&source);
    if (mp_elf_read(&source, "fuzz", &elf) != MP_OK)
        check_refused();
    for (uint32_t i = 0; i < elf.needed_count; i++)
        length += strlen(elf.needed[i]);
    length += elf.interpreter != NULL ? strlen(elf.interpreter) : 0;
    length += elf.run_path != NULL ? strlen(elf.run_path) : 0;
    length += elf.old_path != NULL ? strlen(elf.old_path) : 0;
    FUZZ_CHECK(length <= (MP_ELF_NEEDED_MAX + 3) * (uint64_t)(bytes + 1));
    mp_elf_fini(&elf);
    if (mp_elf_find_exports(&source, "fuzz", names, 2, found) != MP_OK)
        check_refused();
    return 0;
}
