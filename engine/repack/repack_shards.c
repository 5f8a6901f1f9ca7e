/* The new files: which tensors each one holds, what it is called, its header. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/repack/repack_int.h"
#include "vmm/output/json_out.h"

/* Less than MP_ST_TENSORS_MAX, and few enough for a header of some megabytes. */
#define SHARD_TENSORS_MAX 65536u

#define SHARDS_MAX 65536u /* that mp_checkpoint_open() accepts */

/* Items that stay in one file: an expert with its padding, or one other tensor. */
static size_t group_items(const struct mp_repack_plan *plan, size_t first)
{
    const uint32_t expert = plan->items[first].expert;
    size_t count = 1;

    while (expert != UINT32_MAX && first + count < plan->item_count &&
           plan->items[first + count].expert == expert)
        count++;
    return count;
}

static enum mp_status new_shard(struct mp_repack_plan *plan, size_t first)
{
    struct mp_repack_shard *shards;

    if (plan->shard_count == SHARDS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "the model would take more than %u files; give a larger --shard-bytes",
                       SHARDS_MAX);
    if ((plan->shard_count & (plan->shard_count - 1)) == 0) { /* full: 0, 1, 2, 4, ... */
        const size_t capacity = plan->shard_count == 0 ? 1 : plan->shard_count * 2;

        shards = realloc(plan->shards, capacity * sizeof(*shards));
        if (shards == NULL)
            return mp_fail_no_memory("the list of new files", capacity * sizeof(*shards));
        plan->shards = shards;
    }
    plan->shards[plan->shard_count++] = (struct mp_repack_shard){ .first = first };
    return MP_OK;
}

/* Cut the list into files. Offsets cannot overflow: the sum of all was checked. */
static enum mp_status cut_shards(struct mp_repack_plan *plan, uint64_t shard_bytes)
{
    struct mp_repack_shard *shard = NULL;

    for (size_t i = 0; i < plan->item_count;) {
        const size_t count = group_items(plan, i);
        uint64_t bytes = 0;

        for (size_t k = 0; k < count; k++)
            bytes += plan->items[i + k].bytes;
        if (shard == NULL ||
            (shard->count > 0 && (shard->count + count > SHARD_TENSORS_MAX || bytes > shard_bytes ||
                                  shard->data_bytes > shard_bytes - bytes))) {
            const enum mp_status status = new_shard(plan, i);

            if (status != MP_OK)
                return status;
            shard = &plan->shards[plan->shard_count - 1];
        }
        for (size_t k = 0; k < count; k++) {
            plan->items[i + k].offset_bytes = shard->data_bytes;
            shard->data_bytes += plan->items[i + k].bytes;
        }
        shard->count += count;
        i += count;
    }
    return MP_OK;
}

static void name_shards(struct mp_repack_plan *plan)
{
    for (uint32_t i = 0; i < plan->shard_count; i++) {
        struct mp_repack_shard *shard = &plan->shards[i];

        if (plan->shard_count == 1)
            strcpy(shard->name, "model.safetensors");
        else
            snprintf(shard->name, sizeof(shard->name),
                     "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", i + 1, plan->shard_count);
        snprintf(shard->part, sizeof(shard->part), "%s.part", shard->name);
    }
}

static void write_header(const struct mp_repack_plan *plan, const struct mp_repack_shard *shard,
                         FILE *file)
{
    struct mp_json_out json;

    fwrite("\0\0\0\0\0\0\0\0", 1, 8, file); /* the length, filled in when it is known */
    mp_json_begin(&json, file, false);
    mp_json_object_begin(&json, NULL);
    mp_json_object_begin(&json, "__metadata__");
    mp_json_put_string(&json, "format", "pt");
    if (plan->slices.count > 1)
        mp_json_put_string(&json, "moepager", "experts in slices, see docs/repack.md");
    mp_json_object_end(&json);
    for (size_t i = shard->first; i < shard->first + shard->count; i++) {
        const struct mp_repack_item *item = &plan->items[i];

        mp_json_object_begin(&json, item->name);
        mp_json_put_string(&json, "dtype", mp_dtype_name(item->dtype));
        mp_json_array_begin(&json, "shape");
        for (uint32_t d = 0; d < item->dims; d++)
            mp_json_put_u64(&json, NULL, item->shape[d]);
        mp_json_array_end(&json);
        mp_json_array_begin(&json, "data_offsets");
        mp_json_put_u64(&json, NULL, item->offset_bytes);
        mp_json_put_u64(&json, NULL, item->offset_bytes + item->bytes);
        mp_json_array_end(&json);
        mp_json_object_end(&json);
    }
    mp_json_object_end(&json);
}

/* The header, padded with spaces so that data begins at a multiple of the alignment. */
static enum mp_status make_header(const struct mp_repack_plan *plan, struct mp_repack_shard *shard)
{
    size_t bytes = 0;
    FILE *file = open_memstream(&shard->header, &bytes);
    uint64_t length;
    bool good;

    if (file == NULL)
        return mp_fail_no_memory("the header of a new file", shard->count * 128);
    write_header(plan, shard, file);
    for (long at = ftell(file); at > 0 && at % (long)MP_REPACK_ALIGN != 0; at++)
        putc(' ', file);
    good = !ferror(file);
    if (fclose(file) != 0 || !good || bytes <= 8)
        return mp_fail_no_memory("the header of a new file", shard->count * 128);
    length = bytes - 8;
    if (length > MP_ST_HEADER_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_ST_HEADER_LEN",
                       "the header of '%s' would have %" PRIu64 " bytes, need at most %u",
                       shard->name, length, MP_ST_HEADER_BYTES_MAX);
    for (unsigned i = 0; i < 8; i++)
        shard->header[i] = (char)(length >> 8 * i);
    shard->header_bytes = bytes;
    return MP_OK;
}

enum mp_status mp_repack_cut(struct mp_repack_plan *plan, uint64_t shard_bytes)
{
    enum mp_status status = cut_shards(plan, shard_bytes);

    if (status != MP_OK)
        return status;
    name_shards(plan);
    plan->report.shards = plan->shard_count;
    for (uint32_t i = 0; status == MP_OK && i < plan->shard_count; i++)
        status = make_header(plan, &plan->shards[i]);
    return status;
}
