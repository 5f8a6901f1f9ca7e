/*
 * Headers of GGUF files; the input is the file's first bytes, and it is a MiB longer than them.
 * What is accepted lies inside of the file; what is refused has said why.
 */
#include <string.h>

#include "vmm/format/gguf.h"
#include "tests/fuzz/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint64_t file_bytes = bytes + (1u << 20);
    struct mp_gguf_part part;
    bool more;
    /* A block of its own, so that reading one byte too far is seen. */
    uint8_t *head = malloc(bytes + (bytes == 0));

    FUZZ_CHECK(head != NULL);
    memcpy(head, data, bytes);
    mp_error_clear();
    if (mp_gguf_parse(head, bytes, file_bytes, "fuzz.gguf", &part, &more) != MP_OK) {
        FUZZ_CHECK(mp_error_last()->status == MP_ERR_MODEL);
        FUZZ_CHECK(strncmp(mp_error_last()->code, "E_GGUF_", 7) == 0);
        fuzz_check_message(mp_error_last()->text);
    }
    for (size_t i = 0; i < part.tensor_count; i++) {
        const struct mp_gguf_tensor *tensor = &part.tensors[i];

        FUZZ_CHECK(tensor->offset_bytes % part.align_bytes == 0);
        FUZZ_CHECK(tensor->bytes == 0 || tensor->offset_bytes <= file_bytes - tensor->bytes);
        FUZZ_CHECK(i == 0 || strcmp(part.tensors[i - 1].name, tensor->name) < 0);
    }
    for (size_t i = 0; i < part.entry_count; i++) {
        struct mp_gguf_value array = part.entries[i].value, element;

        while (mp_gguf_array_next(&array, &element))
            FUZZ_CHECK(element.data <= head + bytes);
    }
    mp_gguf_part_fini(&part);
    free(head);
    return 0;
}
