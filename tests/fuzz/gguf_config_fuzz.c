/*
 * Models in GGUF files, from the metadata to the plan of their tensors; the input is the file's
 * first bytes, and it is a MiB longer than them, of zeros. What is refused has said why; of what is
 * accepted, every tensor lies inside of the file.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/model/weights.h"
#include "tests/fuzz/text.h"

static void check_refusal(enum mp_status status)
{
    FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_OVERFLOW || status == MP_ERR_NO_MEMORY);
    FUZZ_CHECK(strncmp(mp_error_last()->code, "E_", 2) == 0);
    fuzz_check_message(mp_error_last()->text);
}

static void check_units(const struct mp_weights *weights, uint64_t file_bytes)
{
    for (uint32_t i = 0; i < weights->unit_count; i++) {
        for (uint32_t p = 0; p < weights->units[i].piece_count; p++) {
            const struct mp_piece *piece = &weights->units[i].pieces[p];

            FUZZ_CHECK(piece->bytes <= file_bytes &&
                       piece->offset_bytes <= file_bytes - piece->bytes);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct mp_model_config config;
    const uint64_t file_bytes = bytes + (1u << 20);
    const int fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
    struct mp_checkpoint *checkpoint = NULL;
    struct mp_weights *weights = NULL;
    enum mp_status status = MP_ERR_MODEL;
    char path[64];

    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    FUZZ_CHECK(ftruncate(fd, (off_t)file_bytes) == 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    mp_error_clear();
    if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0)
        status = mp_checkpoint_open(path, &checkpoint);
    if (status == MP_OK)
        status = mp_model_config_load(checkpoint, &config);
    if (status == MP_OK)
        status = mp_weights_describe(checkpoint, &config, &weights);
    if (status == MP_OK)
        check_units(weights, file_bytes);
    else if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0)
        check_refusal(status);
    mp_weights_destroy(weights);
    mp_checkpoint_close(checkpoint);
    close(fd);
    return 0;
}
