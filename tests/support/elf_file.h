#ifndef MP_TESTS_ELF_FILE_H
#define MP_TESTS_ELF_FILE_H

#include <stdbool.h>

/* A program or library as the dynamic loader reads it: no code, only what it needs and exports. */
struct elf_file {
    const char *interpreter; /* NULL: a library */
    const char *run_path, *old_path;
    const char *needed[6];
    const char *exported; /* one function */
};

/* Writes it, with the right to execute it. */
void elf_file_write(const char *path, const struct elf_file *file);

#endif
