/* Comparing directories of models; see repack_check.h. */
#include "tests/model/repack_check.h"

#include <dirent.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "engine/model/arch/arch.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

struct mp_repack_config repack_config(const char *model, const char *out)
{
    return (struct mp_repack_config){ .model = model,
                                      .out = out,
                                      .shard_bytes = MP_REPACK_SHARD_BYTES_DEFAULT };
}

struct mp_repack_report repack_must(const struct mp_repack_config *config)
{
    struct mp_repack_report report;

    if (mp_repack(config, &report) != MP_OK) {
        fprintf(stderr, "%s: error[%s]: %s\n", config->model, mp_error_last()->code,
                mp_error_last()->text);
        exit(1);
    }
    return report;
}

void open_model(const char *dir, struct opened *o)
{
    enum mp_status status = mp_checkpoint_open(dir, &o->checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(o->checkpoint, &o->model);
    if (status == MP_OK)
        status = mp_weights_describe(o->checkpoint, &o->model, &o->weights);
    if (status != MP_OK) {
        fprintf(stderr, "%s: error[%s]: %s\n", dir, mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

void close_model(struct opened *o)
{
    mp_weights_destroy(o->weights);
    mp_checkpoint_close(o->checkpoint);
}

/* The same bytes at two places? The caller frees nothing. */
static void check_bytes(const struct opened *a, uint32_t a_file, uint64_t a_at,
                        const struct opened *b, uint32_t b_file, uint64_t b_at, uint64_t bytes)
{
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);

    CHECK(x != NULL && y != NULL);
    CHECK_EQ(mp_files_read(mp_checkpoint_files(a->checkpoint), a_file, a_at, bytes, x), MP_OK);
    CHECK_EQ(mp_files_read(mp_checkpoint_files(b->checkpoint), b_file, b_at, bytes, y), MP_OK);
    CHECK(memcmp(x, y, bytes) == 0);
    free(x);
    free(y);
}

static void check_units(const struct opened *in, const struct opened *out)
{
    CHECK_EQ(in->weights->unit_count, out->weights->unit_count);
    for (uint32_t u = 0; u < in->weights->unit_count; u++) {
        const struct mp_piece *old = in->weights->units[u].pieces;
        const struct mp_piece *new = out->weights->units[u].pieces;

        CHECK_EQ(new[MP_PIECE_GATE].offset_bytes % MP_REPACK_ALIGN, 0);
        for (unsigned p = 0; p < MP_EXPERT_PIECES; p++) {
            CHECK_EQ(new[p].bytes, old[p].bytes);
            CHECK_EQ(new[p].file, new[0].file);
            if (p > 0)
                CHECK_EQ(new[p].offset_bytes, new[p - 1].offset_bytes + new[p - 1].bytes);
            check_bytes(in, old[p].file, old[p].offset_bytes, out, new[p].file, new[p].offset_bytes,
                        new[p].bytes);
        }
        CHECK(memcmp(&in->weights->unit_types[u], &out->weights->unit_types[u],
                     sizeof(in->weights->unit_types[u])) == 0);
    }
}

static bool is_expert(const char *name)
{
    return strstr(name, ".experts.") != NULL || strstr(name, ".input_linear.") != NULL ||
           strstr(name, ".output_linear.") != NULL;
}

static void check_zeros(const struct opened *o, const struct mp_tensor *tensor)
{
    char bytes[MP_REPACK_ALIGN];

    CHECK(tensor->st.bytes < MP_REPACK_ALIGN);
    CHECK_EQ(tensor->st.dtype, MP_DTYPE_U8);
    CHECK_EQ(mp_files_read(mp_checkpoint_files(o->checkpoint), tensor->file,
                           tensor->st.offset_bytes, tensor->st.bytes, bytes),
             MP_OK);
    for (uint64_t i = 0; i < tensor->st.bytes; i++)
        CHECK(bytes[i] == 0);
}

/* What is no expert and no padding: the same set on both sides. Returns how many. */
static size_t check_others(const struct opened *in, const struct opened *out)
{
    size_t count = 0;

    for (size_t i = 0; i < mp_checkpoint_count(out->checkpoint); i++) {
        const struct mp_tensor *new = mp_checkpoint_tensor(out->checkpoint, i);
        const struct mp_dtype_info *type = mp_dtype_info(new->st.dtype);
        const uint32_t element_bytes = type->block_elements == 1 ? type->block_bytes : 1;
        const struct mp_tensor *old;

        CHECK_EQ(new->st.offset_bytes % element_bytes, 0);
        if (strncmp(new->st.name, MP_PAD_PREFIX, strlen(MP_PAD_PREFIX)) == 0) {
            check_zeros(out, new);
            continue;
        }
        if (is_expert(new->st.name))
            continue;
        count++;
        old = mp_checkpoint_find(in->checkpoint, new->st.name);
        if (old == NULL) /* only the router of a fused Mixtral has another name */
            CHECK(in->model.arch == &mp_arch_mixtral &&
                  strstr(new->st.name, ".block_sparse_moe.gate.weight") != NULL);
        if (old == NULL)
            continue;
        CHECK_EQ(new->st.dtype, old->st.dtype);
        CHECK_EQ(new->st.dims, old->st.dims);
        CHECK(memcmp(new->st.shape, old->st.shape, old->st.dims * sizeof(uint64_t)) == 0);
        check_bytes(in, old->file, old->st.offset_bytes, out, new->file, new->st.offset_bytes,
                    new->st.bytes);
    }
    return count;
}

void check_repacked(const char *model, const char *dir)
{
    struct opened in, out;
    size_t others = 0;

    open_model(model, &in);
    open_model(dir, &out);
    check_units(&in, &out);
    for (size_t i = 0; i < mp_checkpoint_count(in.checkpoint); i++)
        others += !is_expert(mp_checkpoint_tensor(in.checkpoint, i)->st.name);
    CHECK_EQ(check_others(&in, &out), others);
    CHECK_EQ(out.weights->extra_tensors, in.weights->extra_tensors);
    CHECK(mp_checkpoint_warning(out.checkpoint) == NULL);
    CHECK(!dir_has(dir, MP_REPACK_MANIFEST));
    close_model(&in);
    close_model(&out);
}

bool dir_has(const char *dir, const char *name)
{
    char path[8192];
    struct stat info;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return lstat(path, &info) == 0;
}

unsigned dir_count(const char *path)
{
    DIR *dir = opendir(path);
    unsigned count = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 2;
}

static void check_same_files(const char *a, const char *b, const char *name)
{
    char path[8192];
    FILE *files[2];
    int x, y;

    snprintf(path, sizeof(path), "%s/%s", a, name);
    files[0] = fopen(path, "rb");
    snprintf(path, sizeof(path), "%s/%s", b, name);
    files[1] = fopen(path, "rb");
    if (files[0] == NULL || files[1] == NULL) {
        fprintf(stderr, "'%s' is not in both directories\n", name);
        exit(1);
    }
    do {
        x = getc(files[0]);
        y = getc(files[1]);
        CHECK_EQ(x, y);
    } while (x != EOF);
    fclose(files[0]);
    fclose(files[1]);
}

void check_same_dirs(const char *a, const char *b)
{
    DIR *dir = opendir(a);
    const struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            check_same_files(a, b, entry->d_name);
    }
    closedir(dir);
    CHECK_EQ(dir_count(a), dir_count(b));
}

static int role_of(const char *name)
{
    static const char *const roles[] = { "gate_proj", "up_proj", "down_proj" };

    for (int i = 0; is_expert(name) && i < 3; i++) {
        if (strstr(name, roles[i]) != NULL)
            return i;
    }
    return 3;
}

/* Write tensors of one role: with `header` the entries, else the bytes. */
static void write_role(const struct opened *o, int role, FILE *file, bool header, uint64_t *at)
{
    for (size_t i = 0; i < mp_checkpoint_count(o->checkpoint); i++) {
        const struct mp_tensor *tensor = mp_checkpoint_tensor(o->checkpoint, i);
        char *bytes;

        if (role_of(tensor->st.name) != role)
            continue;
        if (header) {
            fprintf(file, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", *at > 0 ? ',' : '{',
                    tensor->st.name, mp_dtype_name(tensor->st.dtype));
            for (uint32_t d = 0; d < tensor->st.dims; d++)
                fprintf(file, "%s%" PRIu64, d > 0 ? "," : "", tensor->st.shape[d]);
            fprintf(file, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at,
                    *at + tensor->st.bytes);
            *at += tensor->st.bytes;
            continue;
        }
        bytes = malloc(tensor->st.bytes);
        CHECK(bytes != NULL);
        CHECK_EQ(mp_files_read(mp_checkpoint_files(o->checkpoint), tensor->file,
                               tensor->st.offset_bytes, tensor->st.bytes, bytes),
                 MP_OK);
        CHECK(fwrite(bytes, 1, tensor->st.bytes, file) == tensor->st.bytes);
        free(bytes);
    }
}

static void copy_text(const char *from, const char *to, const char *name)
{
    char path[8192];
    FILE *in, *out;
    int c;

    snprintf(path, sizeof(path), "%s/%s", from, name);
    in = fopen(path, "rb");
    snprintf(path, sizeof(path), "%s/%s", to, name);
    out = fopen(path, "wb");
    CHECK(in != NULL && out != NULL);
    while ((c = getc(in)) != EOF)
        putc(c, out);
    fclose(in);
    CHECK(fclose(out) == 0);
}

void write_scattered(const char *model, const char *dir)
{
    char path[8192], *header = NULL;
    size_t header_bytes = 0;
    struct opened o;
    uint64_t at = 0;
    FILE *file, *text;

    CHECK(mkdir(dir, 0777) == 0);
    open_model(model, &o);
    text = open_memstream(&header, &header_bytes);
    for (int role = 0; role < 4; role++)
        write_role(&o, role, text, true, &at);
    fputc('}', text);
    while (ftell(text) % 8 != 0 || (ftell(text) + 8) % MP_REPACK_ALIGN == 0)
        fputc(' ', text);
    CHECK(fclose(text) == 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    for (unsigned i = 0; i < 8; i++)
        fputc((int)((uint64_t)header_bytes >> 8 * i & 0xff), file);
    fwrite(header, 1, header_bytes, file);
    for (int role = 0; role < 4; role++)
        write_role(&o, role, file, false, &at);
    CHECK(fclose(file) == 0);
    free(header);
    close_model(&o);
    copy_text(model, dir, "config.json");
}
