/*
 * `moepager repack`: a copy of a model in the order in which a pager reads it, or as a GGUF file
 * with weights of another type.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/convert/convert.h"
#include "engine/repack/repack.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

static void print_text(const struct mp_args *args, const struct mp_repack_report *r, double seconds)
{
    const double mib = 1.0 / (1 << 20);

    printf("%s: %" PRIu32 " experts, %.1f MiB in %" PRIu32 " %s (%" PRIu32
           " kept), %.1f MiB written in %.1f s, read back and equal\n",
           args->out, r->experts, (double)(r->expert_bytes + r->other_bytes + r->pad_bytes) * mib,
           r->shards, r->shards == 1 ? "file" : "files", r->shards_kept,
           (double)r->written_bytes * mib, seconds);
    printf("aligned reads per expert: %.2f of %.1f KiB each, before %.2f of %.1f KiB; padding %.3f "
           "MiB; %" PRIu32 " other files copied%s\n",
           (double)r->reads_after / r->experts,
           (double)r->read_bytes_after / (double)r->reads_after / 1024,
           (double)r->reads_before / r->experts,
           (double)r->read_bytes_before / (double)r->reads_before / 1024,
           (double)r->pad_bytes * mib, r->files_copied,
           r->fused             ? "; fused experts were split"
           : args->type != NULL ? "; experts were rounded to MXFP4"
                                : "");
    if (r->slices > 1)
        printf("each expert in %" PRIu32 " slices, for moepager only; %s those of whole experts\n",
               r->slices,
               r->exact ? "results are bit for bit" : "the last bits of results differ from");
}

static void print_json(const struct mp_args *args, const struct mp_repack_report *r, double seconds)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "model", args->model);
    mp_json_put_string(&json, "out", args->out);
    if (args->type != NULL)
        mp_json_put_string(&json, "type", args->type);
    mp_json_put_u64(&json, "files", r->shards);
    mp_json_put_u64(&json, "files_kept", r->shards_kept);
    mp_json_put_u64(&json, "other_files_copied", r->files_copied);
    mp_json_put_u64(&json, "experts", r->experts);
    mp_json_put_u64(&json, "expert_bytes", r->expert_bytes);
    mp_json_put_u64(&json, "other_bytes", r->other_bytes);
    mp_json_put_u64(&json, "pad_bytes", r->pad_bytes);
    mp_json_put_u64(&json, "written_bytes", r->written_bytes);
    mp_json_put_u64(&json, "expert_reads_before", r->reads_before);
    mp_json_put_u64(&json, "expert_reads_after", r->reads_after);
    mp_json_put_u64(&json, "expert_read_bytes_before", r->read_bytes_before);
    mp_json_put_u64(&json, "expert_read_bytes_after", r->read_bytes_after);
    mp_json_put_bool(&json, "fused_experts_split", r->fused);
    mp_json_put_u64(&json, "slices_before", r->slices_before);
    mp_json_put_u64(&json, "slices", r->slices);
    mp_json_put_bool(&json, "same_bits_as_whole", r->exact);
    mp_json_put_f64(&json, "seconds", seconds);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static void print_converted(const struct mp_args *args, const struct mp_convert_report *r,
                            double seconds)
{
    struct mp_json_out json;

    if (!args->json) {
        printf(
            "%s: %" PRIu64 " tensors, %" PRIu64 " of them rounded, relative error %.5f; %.1f MiB "
            "of weights became %.1f MiB in %.1f s%s\n",
            args->out, r->tensors, r->quantised, r->error, (double)r->source_bytes / (1 << 20),
            (double)r->bytes / (1 << 20), seconds,
            args->imatrix != NULL && r->weighed == 0 ? "; the importance matrix names none of them"
                                                     : "");
        return;
    }
    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "model", args->model);
    mp_json_put_string(&json, "out", args->out);
    mp_json_put_string(&json, "type", args->type);
    mp_json_put_u64(&json, "tensors", r->tensors);
    mp_json_put_u64(&json, "rounded", r->quantised);
    mp_json_put_u64(&json, "weighed", r->weighed);
    mp_json_put_u64(&json, "source_bytes", r->source_bytes);
    mp_json_put_u64(&json, "bytes", r->bytes);
    mp_json_put_f64(&json, "relative_error", r->error);
    mp_json_put_f64(&json, "seconds", seconds);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static enum mp_status convert(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_clock *clock = mp_clock_monotonic();
    struct mp_progress_bar bar;
    const struct mp_progress progress = mp_loading_progress(&bar);
    struct mp_convert_config config = { .model = args->model,
                                        .out = args->out,
                                        .type = args->type,
                                        .imatrix = args->imatrix,
                                        .force = args->force,
                                        .progress = &progress };
    const uint64_t start_ns = mp_clock_now_ns(clock);
    struct mp_convert_report report;
    enum mp_status status =
        mp_pool_create(&settings->pool, NULL, MP_TOPOLOGY_ANY_NODE, &config.pool);

    if (status != MP_OK)
        return status;
    mp_progress_bar_begin(&bar, "quantising", NULL, clock);
    if (!args->json)
        mp_progress_bar_want_lines(&bar);
    status = mp_convert(&config, &report);
    mp_progress_bar_end(&bar);
    mp_pool_destroy(config.pool);
    if (status != MP_OK)
        return status;
    print_converted(args, &report, (double)(mp_clock_now_ns(clock) - start_ns) * 1e-9);
    return mp_check_stdout();
}

/* What goes together; *convert_p: write a GGUF file. */
static enum mp_status check_form(const struct mp_args *args, const struct mp_settings *settings,
                                 bool *convert_p)
{
    const bool gguf = args->to != NULL ? strcmp(args->to, "gguf") == 0 : args->type != NULL;
    char quoted[MP_QUOTE_BYTES];

    *convert_p = gguf;
    if (args->to != NULL && !gguf && strcmp(args->to, "safetensors") != 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--to '%s' is neither gguf nor safetensors",
                       mp_quote(quoted, args->to, strlen(args->to)));
    if (gguf && args->type == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--to gguf needs --type, such as --type q8_0");
    if (args->type != NULL && settings->run.slices > 1)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--slices is for --to safetensors without --type");
    if (!gguf && args->type != NULL && strcmp(args->type, "mxfp4") != 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--type '%s' has no form in safetensors files; give --to gguf, or --type "
                       "mxfp4 for the experts of gpt-oss",
                       mp_quote(quoted, args->type, strlen(args->type)));
    if (!gguf && args->imatrix != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--imatrix is for --to gguf, with a --type");
    return MP_OK;
}

enum mp_status mp_cmd_repack(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_clock *clock = mp_clock_monotonic();
    struct mp_progress_bar bar;
    const struct mp_progress progress = mp_loading_progress(&bar);
    const struct mp_repack_config config = {
        .model = args->model,
        .out = args->out,
        .slices = (uint32_t)settings->run.slices,
        .shard_bytes = args->shard_bytes,
        .mxfp4 = args->type != NULL, /* of safetensors; there is no other */
        .force = args->force,
        .progress = &progress,
    };
    const uint64_t start_ns = mp_clock_now_ns(clock);
    struct mp_repack_report report;
    enum mp_status status = mp_require_model(args);
    bool gguf = false;
    double seconds;

    if (status != MP_OK)
        return status;
    if (args->out == NULL)
        return mp_fail(
            MP_ERR_CONFIG, "E_USAGE",
            "no target: give --out DIR, a directory that is new or empty, or with --type "
            "a new GGUF file");
    status = check_form(args, settings, &gguf);
    if (status != MP_OK || gguf)
        return status == MP_OK ? convert(args, settings) : status;
    mp_progress_bar_begin(&bar, "repacking", NULL, clock);
    if (!args->json)
        mp_progress_bar_want_lines(&bar);
    status = mp_repack(&config, &report);
    mp_progress_bar_end(&bar);
    if (status != MP_OK)
        return status;
    seconds = (double)(mp_clock_now_ns(clock) - start_ns) * 1e-9;
    if (args->json)
        print_json(args, &report, seconds);
    else
        print_text(args, &report, seconds);
    return mp_check_stdout();
}
