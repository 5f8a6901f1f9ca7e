/* A model directory with other names, types or values; see rewrite.h. */
#include "tests/model/rewrite.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cpu/kernels.h"
#include "tests/model/tiny_model.h"
#include "tests/support/test.h"

static char *read_text(int dir_fd, const char *name)
{
    const int fd = openat(dir_fd, name, O_RDONLY);
    struct stat info;
    char *text;

    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    text = calloc(1, (size_t)info.st_size + 1);
    CHECK(text != NULL && read(fd, text, (size_t)info.st_size) == info.st_size);
    close(fd);
    return text;
}

static struct rewritten read_tensor(const struct mp_checkpoint *checkpoint, size_t index)
{
    const struct mp_tensor *tensor = mp_checkpoint_tensor(checkpoint, index);
    struct rewritten out = { .dtype = mp_dtype_name(tensor->st.dtype),
                             .dims = tensor->st.dims,
                             .data = malloc(tensor->st.bytes),
                             .bytes = tensor->st.bytes };

    CHECK(out.data != NULL && strlen(tensor->st.name) < sizeof(out.name));
    strcpy(out.name, tensor->st.name);
    memcpy(out.shape, tensor->st.shape, sizeof(out.shape));
    CHECK_EQ(mp_files_read(mp_checkpoint_files(checkpoint), tensor->file, tensor->st.offset_bytes,
                           tensor->st.bytes, out.data),
             MP_OK);
    return out;
}

static void put_entry(FILE *header, const struct rewritten *tensor, uint64_t at)
{
    fprintf(header, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", at > 0 ? ',' : '{', tensor->name,
            tensor->dtype);
    for (uint32_t d = 0; d < tensor->dims; d++)
        fprintf(header, "%s%" PRIu64, d > 0 ? "," : "", tensor->shape[d]);
    fprintf(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + tensor->bytes);
}

void rewrite_model(const char *model, const char *out, const char *config,
                   void (*change)(struct rewritten *tensor))
{
    char *header = NULL, *data = NULL, path[4096], *own;
    size_t header_bytes, data_bytes;
    FILE *head = open_memstream(&header, &header_bytes);
    FILE *body = open_memstream(&data, &data_bytes), *file;
    struct mp_checkpoint *checkpoint;
    uint64_t at = 0;

    CHECK(head != NULL && body != NULL);
    CHECK_EQ(mkdir(out, 0700), 0);
    CHECK_EQ(mp_checkpoint_open(model, &checkpoint), MP_OK);
    for (size_t i = 0; i < mp_checkpoint_count(checkpoint); i++) {
        struct rewritten tensor = read_tensor(checkpoint, i);

        change(&tensor);
        put_entry(head, &tensor, at);
        CHECK_EQ(fwrite(tensor.data, 1, tensor.bytes, body), tensor.bytes);
        at += tensor.bytes;
        free(tensor.data);
    }
    own = read_text(mp_checkpoint_dir_fd(checkpoint), "config.json");
    tiny_write_text(out, "config.json", config != NULL ? config : own);
    free(own);
    mp_checkpoint_close(checkpoint);
    fputc('}', head);
    CHECK(fclose(head) == 0 && fclose(body) == 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", out);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)header_bytes >> (8 * i) & 0xff), file);
    CHECK_EQ(fwrite(header, 1, header_bytes, file), header_bytes);
    CHECK_EQ(fwrite(data, 1, data_bytes, file), data_bytes);
    CHECK(fclose(file) == 0);
    free(header);
    free(data);
}

void rewrite_as_f32(struct rewritten *tensor)
{
    const bool bfloat = strcmp(tensor->dtype, "BF16") == 0;
    float *wide;

    if (strcmp(tensor->dtype, "F32") == 0 || strcmp(tensor->dtype, "U8") == 0)
        return;
    wide = malloc(2 * tensor->bytes);
    CHECK(wide != NULL);
    mp_kernels_ref.convert(wide, tensor->data, bfloat ? MP_WTYPE_BF16 : MP_WTYPE_F16,
                           tensor->bytes / 2);
    free(tensor->data);
    tensor->data = wide;
    tensor->dtype = "F32";
    tensor->bytes *= 2;
}
