#ifndef MP_TEST_TMPDIR_H
#define MP_TEST_TMPDIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A directory for the files of one test program, removed at its end, also after a failed check.
 * Weak: one for all sources of the program. */
__attribute__((weak)) char test_tmpdir_path[4096];

static inline int test_tmpdir_remove_entry(const char *path, const struct stat *st, int type,
                                           struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void test_tmpdir_remove(void)
{
    nftw(test_tmpdir_path, test_tmpdir_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* The directory; made at the first call, under $TMPDIR or /tmp. Exits 1 if it cannot be made. */
static inline const char *test_tmpdir(void)
{
    const char *base = getenv("TMPDIR");

    if (test_tmpdir_path[0] != '\0')
        return test_tmpdir_path;
    snprintf(test_tmpdir_path, sizeof(test_tmpdir_path), "%s/moepager-test-XXXXXX",
             base != NULL && base[0] == '/' ? base : "/tmp");
    if (mkdtemp(test_tmpdir_path) == NULL) {
        perror(test_tmpdir_path);
        exit(1);
    }
    atexit(test_tmpdir_remove);
    return test_tmpdir_path;
}

/* Write `text` to `path`, which begins with '/', below `root`, and make the folders on the way.
 * Exits 1 if it cannot be written. */
static inline void test_put(const char *root, const char *path, const char *text)
{
    char full[4096];
    FILE *file;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(full, 0700);
        *at = '/';
    }
    file = fopen(full, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(full);
        exit(1);
    }
}

#endif
