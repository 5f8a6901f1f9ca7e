/* Reader and writer of npy files; the header is a Python dict of fixed form. */
#include "tests/support/npy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_BYTES 10 /* magic, version, length of the text */
#define ITEM_BYTES 4
#define DATA_ALIGN 64

static const char *const type_names[] = { [NPY_F32] = "<f4", [NPY_I32] = "<i4" };

static bool refuse(const char *path, const char *why)
{
    fprintf(stderr, "%s: %s\n", path, why);
    return false;
}

/* The text after "'key':" and spaces, or NULL. */
static const char *find_value(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    if (at == NULL)
        return NULL;
    at += strlen(key);
    return at + strspn(at, " ");
}

/* Reads "(4, 17, 97)", "(17,)" or "()"; false for more dimensions or elements than fit. */
static bool parse_shape(const char *at, struct npy *npy)
{
    npy->count = 1;
    if (*at++ != '(')
        return false;
    for (;;) {
        char *end;
        unsigned long long dim;

        at += strspn(at, " ,");
        if (*at == ')')
            return true;
        if (*at < '0' || *at > '9' || npy->n_dims == NPY_DIMS_MAX)
            return false;
        errno = 0;
        dim = strtoull(at, &end, 10);
        if (errno != 0 || (dim > 0 && npy->count > SIZE_MAX / ITEM_BYTES / dim))
            return false;
        npy->dims[npy->n_dims++] = dim;
        npy->count *= dim;
        at = end;
    }
}

static bool parse_header(const char *path, const char *text, struct npy *npy)
{
    const char *descr = find_value(text, "'descr':");
    const char *order = find_value(text, "'fortran_order':");
    const char *shape = find_value(text, "'shape':");

    if (descr == NULL || order == NULL || shape == NULL)
        return refuse(path, "npy header without descr, fortran_order and shape");
    if (strncmp(descr, "'<f4'", 5) == 0)
        npy->type = NPY_F32;
    else if (strncmp(descr, "'<i4'", 5) == 0)
        npy->type = NPY_I32;
    else
        return refuse(path, "npy type is neither <f4 nor <i4");
    if (strncmp(order, "False", 5) != 0)
        return refuse(path, "npy array is in Fortran order");
    if (!parse_shape(shape, npy))
        return refuse(path, "npy shape cannot be read");
    return true;
}

static bool read_stream(const char *path, FILE *file, struct npy *npy)
{
    unsigned char prefix[PREFIX_BYTES];
    char text[UINT16_MAX + 1];
    size_t text_bytes;

    if (fread(prefix, 1, PREFIX_BYTES, file) != PREFIX_BYTES ||
        memcmp(prefix, "\x93NUMPY\x01\x00", 8) != 0)
        return refuse(path, "not an npy file of format 1.0");
    text_bytes = prefix[8] | (size_t)prefix[9] << 8;
    if (fread(text, 1, text_bytes, file) != text_bytes)
        return refuse(path, "npy header is cut off");
    text[text_bytes] = '\0';
    if (!parse_header(path, text, npy))
        return false;

    npy->data = malloc(npy->count > 0 ? npy->count * ITEM_BYTES : 1);
    if (npy->data == NULL)
        return refuse(path, "no memory for the array");
    if (fread(npy->data, ITEM_BYTES, npy->count, file) == npy->count && fgetc(file) == EOF)
        return true;
    npy_free(npy);
    return refuse(path, "npy data has not the length of its shape");
}

bool npy_read(const char *path, struct npy *npy_p)
{
    struct npy npy = { 0 };
    FILE *file = fopen(path, "rb");
    bool ok;

    if (file == NULL)
        return refuse(path, strerror(errno));
    ok = read_stream(path, file, &npy);
    fclose(file);
    if (ok)
        *npy_p = npy;
    return ok;
}

void npy_free(struct npy *npy)
{
    free(npy->data);
    *npy = (struct npy){ 0 };
}

bool npy_write(const char *path, enum npy_type type, size_t n_dims, const size_t *dims,
               const void *data)
{
    char text[256], shape[128] = "";
    size_t count = 1, used = 0, text_bytes;
    FILE *file;
    bool ok;

    if (n_dims > NPY_DIMS_MAX)
        return refuse(path, "too many dimensions for npy");
    for (size_t i = 0; i < n_dims; i++) {
        /* numpy writes one dimension as "(17,)" and several as "(4, 17)". */
        const char *comma = n_dims == 1 ? "," : i + 1 < n_dims ? ", " : "";

        used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%zu%s", dims[i], comma);
        count *= dims[i];
    }
    text_bytes = (size_t)snprintf(text, sizeof(text),
                                  "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                                  type_names[type], shape);
    while ((PREFIX_BYTES + text_bytes + 1) % DATA_ALIGN != 0)
        text[text_bytes++] = ' ';
    text[text_bytes++] = '\n';

    file = fopen(path, "wb");
    if (file == NULL)
        return refuse(path, strerror(errno));
    ok = fwrite("\x93NUMPY\x01\x00", 1, 8, file) == 8;
    ok = ok && fputc((int)(text_bytes & 0xff), file) != EOF;
    ok = ok && fputc((int)(text_bytes >> 8), file) != EOF;
    ok = ok && fwrite(text, 1, text_bytes, file) == text_bytes;
    ok = ok && fwrite(data, ITEM_BYTES, count, file) == count;
    ok = fclose(file) == 0 && ok;
    return ok || refuse(path, "npy file cannot be written");
}

double npy_error(const float *got, const float *want, size_t count)
{
    double worst = 0, scale = 0;

    for (size_t i = 0; i < count; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);

        if (!isfinite(diff))
            return INFINITY;
        worst = fmax(worst, diff);
        scale = fmax(scale, fabs((double)want[i]));
    }
    return worst == 0 ? 0 : worst / scale;
}
