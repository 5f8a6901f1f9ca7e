/*
 * API keys: a small file, compared without telling by time how much of a key is right.
 */
#include "engine/serve/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vmm/base/error.h"

#define KEY_BYTES_MIN 16
#define KEY_BYTES_MAX 256

struct mp_keys {
    size_t count;
    size_t bytes[MP_KEYS_MAX];
    char key[MP_KEYS_MAX][KEY_BYTES_MAX];
};

static enum mp_status add_key(struct mp_keys *keys, const char *line, size_t bytes, size_t number,
                              const char *quoted)
{
    bool printable = true;

    for (size_t i = 0; i < bytes; i++)
        printable = printable && line[i] > ' ' && line[i] <= '~';
    if (bytes < KEY_BYTES_MIN || bytes > KEY_BYTES_MAX || !printable)
        return mp_fail(MP_ERR_CONFIG, "E_KEY_FILE",
                       "line %zu of '%s' is no key: need 16 to 256 printable characters without "
                       "blanks",
                       number, quoted);
    if (keys->count == MP_KEYS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_KEY_FILE", "'%s' has more than %d keys", quoted,
                       MP_KEYS_MAX);
    memcpy(keys->key[keys->count], line, bytes);
    keys->bytes[keys->count++] = bytes;
    return MP_OK;
}

static enum mp_status read_keys(FILE *file, const char *quoted, struct mp_keys *keys)
{
    char line[KEY_BYTES_MAX + 3]; /* one byte more than a key, newline, NUL */
    enum mp_status status = MP_OK;

    for (size_t number = 1; status == MP_OK && fgets(line, sizeof(line), file) != NULL; number++) {
        size_t bytes = strlen(line);

        while (bytes > 0 && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r'))
            bytes--;
        if (bytes > 0 && line[0] != '#')
            status = add_key(keys, line, bytes, number, quoted);
    }
    if (status == MP_OK && ferror(file))
        return mp_fail(MP_ERR_IO, "E_KEY_FILE", "cannot read '%s': %s", quoted, strerror(errno));
    if (status == MP_OK && keys->count == 0)
        return mp_fail(MP_ERR_CONFIG, "E_KEY_FILE", "there is no key in '%s'", quoted);
    return status;
}

static enum mp_status check_mode(FILE *file, const char *quoted)
{
    struct stat stat;

    if (fstat(fileno(file), &stat) != 0)
        return mp_fail(MP_ERR_IO, "E_KEY_FILE", "cannot look at '%s': %s", quoted, strerror(errno));
    if (stat.st_mode & S_IRWXO)
        return mp_fail(MP_ERR_CONFIG, "E_KEY_FILE",
                       "'%s' is open to other users of this machine; chmod 600", quoted);
    return MP_OK;
}

enum mp_status mp_keys_load(const char *path, struct mp_keys **keys_p)
{
    char quoted[MP_QUOTE_BYTES];
    FILE *file = fopen(path, "re");
    struct mp_keys *keys;
    enum mp_status status;

    mp_quote(quoted, path, strlen(path));
    if (file == NULL)
        return mp_fail(MP_ERR_IO, "E_KEY_FILE", "cannot open '%s': %s", quoted, strerror(errno));
    keys = calloc(1, sizeof(*keys));
    status =
        keys != NULL ? check_mode(file, quoted) : mp_fail_no_memory("keys", sizeof(struct mp_keys));
    if (status == MP_OK)
        status = read_keys(file, quoted, keys);
    fclose(file);
    if (status == MP_OK)
        *keys_p = keys;
    else
        mp_keys_destroy(keys);
    return status;
}

void mp_keys_destroy(struct mp_keys *keys)
{
    free(keys);
}

bool mp_keys_have(const struct mp_keys *keys, const char *key, size_t bytes)
{
    bool found = false;

    for (size_t i = 0; i < keys->count; i++) {
        unsigned differs = keys->bytes[i] != bytes;

        for (size_t k = 0; k < keys->bytes[i] && k < bytes; k++)
            differs |= (unsigned)(keys->key[i][k] ^ key[k]);
        found |= differs == 0;
    }
    return found;
}
