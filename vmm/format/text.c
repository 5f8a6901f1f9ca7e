/*
 * Small text files of a model, and detection of failed downloads in their place.
 */
#include "vmm/format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/io/file.h"

enum mp_status mp_text_check_download(const char *text, size_t bytes, const char *name)
{
    static const char lfs[] = "version https://git-lfs";
    static const char *const html[] = { "<!doctype html", "<html" };
    char shown[MP_QUOTE_BYTES];
    size_t at = 0;

    mp_quote(shown, name, strlen(name));
    if (bytes >= sizeof(lfs) - 1 && memcmp(text, lfs, sizeof(lfs) - 1) == 0)
        return mp_fail(MP_ERR_MODEL, "E_FILE_LFS",
                       "'%s' is a Git LFS pointer, not the model; run 'git lfs pull' in its folder",
                       shown);
    while (at < bytes && at < 64 && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0')
        at++;
    mp_assert(at <= bytes);
    for (size_t i = 0; i < MP_ARRAY_LEN(html); i++) {
        const size_t length = strlen(html[i]);

        if (bytes - at >= length && strncasecmp(text + at, html[i], length) == 0)
            return mp_fail(MP_ERR_MODEL, "E_FILE_HTML",
                           "'%s' is an HTML page, not the model; download the file again", shown);
    }
    return MP_OK;
}

enum mp_status mp_text_load(int dirfd, const char *name, uint64_t cap_bytes, char **text_p,
                            size_t *bytes_p)
{
    struct mp_files *files = NULL;
    enum mp_status status;
    char shown[MP_QUOTE_BYTES];
    uint64_t bytes = 0;
    uint32_t index = 0;
    char *text = NULL;

    mp_assert(cap_bytes < SIZE_MAX); /* and a NUL */
    mp_quote(shown, name, strlen(name));
    if (faccessat(dirfd, name, F_OK, 0) != 0 && errno == ENOENT)
        return mp_fail(MP_ERR_MODEL, "E_FILE_MISSING", "file '%s' is missing", shown);
    status = mp_files_create(&files);
    if (status == MP_OK)
        status = mp_files_add(files, dirfd, name, &index);
    if (status != MP_OK)
        goto out;
    bytes = mp_files_bytes(files, index);
    if (bytes > cap_bytes) {
        status = mp_fail(MP_ERR_MODEL, "E_FILE_SIZE",
                         "file '%s' is %" PRIu64 " bytes, need at most %" PRIu64, shown, bytes,
                         cap_bytes);
        goto out;
    }
    text = malloc(bytes + 1);
    if (text == NULL) {
        status = mp_fail_no_memory(shown, bytes + 1);
        goto out;
    }
    status = mp_files_read(files, index, 0, bytes, text);
    if (status == MP_OK)
        status = mp_text_check_download(text, bytes, name);
    if (status != MP_OK)
        goto out;
    text[bytes] = '\0';
    *text_p = text;
    *bytes_p = bytes;
    text = NULL;
out:
    free(text);
    mp_files_destroy(files);
    return status;
}
