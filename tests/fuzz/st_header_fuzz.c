/*
 * Headers of safetensors files. The input is the size that the file claims to have (8 bytes,
 * little-endian) and then the file's first bytes: length field and header.
 *
 * What is accepted must be a complete description of the file, checked here a second time with
 * 128-bit arithmetic; what is refused must have said why.
 */
#include <string.h>

#include "vmm/format/safetensors.h"
#include "tests/fuzz/text.h"

static uint64_t read_u64(const uint8_t *data)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; i--)
        value = value << 8 | data[i];
    return value;
}

static void check_refusal(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(status == MP_ERR_MODEL);
    FUZZ_CHECK(error->status == status);
    FUZZ_CHECK(strncmp(error->code, "E_ST_", 5) == 0);
    fuzz_check_message(error->text);
}

static void check_table(const struct mp_st_table *table, uint64_t data_begin, uint64_t file_bytes)
{
    unsigned __int128 end = data_begin;

    for (size_t i = 0; i < table->count; i++) {
        const struct mp_st_tensor *tensor = &table->tensors[i];
        const struct mp_dtype_info *type = mp_dtype_info(tensor->dtype);
        unsigned __int128 bits = (unsigned __int128)type->block_bytes * 8;

        FUZZ_CHECK(tensor->dims <= MP_ST_DIMS_MAX);
        FUZZ_CHECK(strlen(tensor->name) <= MP_ST_NAME_BYTES_MAX);
        for (uint32_t d = 0; d < tensor->dims; d++) {
            FUZZ_CHECK(bits <= UINT64_MAX);
            bits *= tensor->shape[d];
        }
        FUZZ_CHECK(bits == (unsigned __int128)tensor->bytes * 8 * type->block_elements);
        FUZZ_CHECK(tensor->offset_bytes == end);
        end += tensor->bytes;
        for (size_t k = 0; k < i && k < 64; k++)
            FUZZ_CHECK(strcmp(tensor->name, table->tensors[k].name) != 0);
    }
    FUZZ_CHECK(end == file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct mp_st_table table;
    uint64_t file_bytes, header_bytes;
    enum mp_status status;
    char *header;

    if (bytes < 8)
        return 0;
    file_bytes = read_u64(data);
    data += 8;
    bytes -= 8;
    /* A file is not shorter than what is there of it, and only data may be missing. */
    if (file_bytes < bytes)
        bytes = file_bytes;
    else if (bytes < 8)
        file_bytes = bytes;
    mp_error_clear();
    status = mp_st_header_bytes(data, file_bytes, "fuzz.safetensors", &header_bytes);
    if (status != MP_OK) {
        check_refusal(status);
        return 0;
    }
    FUZZ_CHECK(header_bytes <= file_bytes - 8 && header_bytes <= MP_ST_HEADER_BYTES_MAX);
    if (header_bytes > bytes - 8)
        return 0;
    /* A block of its own, so that reading one byte too far is seen. */
    header = malloc(header_bytes + (header_bytes == 0));
    FUZZ_CHECK(header != NULL);
    memcpy(header, data + 8, header_bytes);
    status = mp_st_parse(header, header_bytes, file_bytes, "fuzz.safetensors", &table);
    free(header);
    if (status == MP_OK)
        check_table(&table, 8 + header_bytes, file_bytes);
    else
        check_refusal(status);
    mp_st_table_fini(&table);
    return 0;
}
