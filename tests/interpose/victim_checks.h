#ifndef MP_TESTS_INTERPOSE_VICTIM_CHECKS_H
#define MP_TESTS_INTERPOSE_VICTIM_CHECKS_H

#include <stddef.h>
#include <stdint.h>

/*
 * What a program can do with a file that it has mapped, and whether it then sees the file's bytes.
 * The reference is the file itself, read with pread(). Each check prints one line, `NAME wrong N`,
 * which is the same with and without moepager if nothing is wrong; N counts pages.
 */
struct victim_mapping {
    const char *path;
    const unsigned char *base;
    size_t first, bytes; /* what of the file is mapped: from `first` to `bytes` */
    int fd;              /* of the file, not the one it was mapped with */
};

/* Map a file as llama.cpp does, and close what it was mapped with. */
void victim_map(const char *path, struct victim_mapping *m);

/* The mapping of a file that somebody else in this process has made, and of which ends may be gone.
 */
void victim_find(const char *path, struct victim_mapping *m);

/* Runs the checks of a comma-separated list:
 *
 *   bytes   every byte, once
 *   touch   a million random places, eight threads
 *   fork    a child reads every byte, and so does its parent meanwhile
 *   write   write(2) reads the mapping
 *   readv   process_vm_readv(2) reads it, as a debugger would
 *   signal  a fault of the program's own reaches its own handler, with its address
 */
void victim_check(const struct victim_mapping *m, const char *list);

/* Pages that differ from the file. */
size_t victim_wrong_pages(const struct victim_mapping *m);

_Noreturn void victim_fail(const char *what, const char *name);

#endif
