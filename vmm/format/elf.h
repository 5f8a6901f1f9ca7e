#ifndef MP_FORMAT_ELF_H
#define MP_FORMAT_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Reads from a program or library what the dynamic loader uses before it starts it: the loader,
 * needed libraries, search paths, and exported functions. Nothing is executed or mapped, and every
 * number of the file is checked before use.
 *
 * Files for another word size or byte order are recognised but not parsed.
 *
 * Thread safety: objects need exclusive use.
 */
struct mp_elf_source {
    /* Read exactly `bytes` bytes, which are inside the file; false: they cannot be read. */
    bool (*read)(void *context, uint64_t offset_bytes, uint64_t bytes, void *dst);
    void *context;
    uint64_t file_bytes;
};

struct mp_elf {
    uint16_t machine;        /* EM_* */
    bool foreign;            /* another word size or byte order: the fields below are not set */
    bool dynamic;            /* needs the loader, or is for it */
    const char *interpreter; /* NULL: it names no loader, like libraries and static programs */
    const char *run_path, *old_path; /* DT_RUNPATH, DT_RPATH; NULL: none */
    const char **needed;
    uint32_t needed_count;
    void *block; /* holds all of them */
};

#define MP_ELF_NEEDED_MAX 512u
#define MP_ELF_STRINGS_BYTES_MAX (256u << 20)
#define MP_ELF_SYMBOLS_MAX (8u << 20)

/* True if it begins like an ELF file. */
bool mp_elf_is(const struct mp_elf_source *source);

/* MP_ERR_MODEL E_ELF: not an ELF file, or a damaged one; MP_ERR_IO E_READ; MP_ERR_NO_MEMORY. On
 * failure *elf is zeroed. `name` is the file as messages show it. */
enum mp_status mp_elf_read(const struct mp_elf_source *source, const char *name,
                           struct mp_elf *elf) MP_MUST_CHECK;

/* Accepts a zeroed one. */
void mp_elf_fini(struct mp_elf *elf);

/* found[i] := the file exports the function names[i]. Needs the section table, which all but packed
 * programs have. Errors as above. */
enum mp_status mp_elf_find_exports(const struct mp_elf_source *source, const char *name,
                                   const char *const *names, size_t count,
                                   bool *found) MP_MUST_CHECK;

#endif
