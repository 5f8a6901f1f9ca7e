/* Sweeps over parts of the engine; see engine_fault_parts.h. */
#include "tests/model/fault/engine_fault_parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/doctor/doctor.h"
#include "engine/gpu/cublas.h"
#include "engine/gpu/gpu.h"
#include "engine/probe/probe.h"
#include "engine/forward/engine_int.h"
#include "engine/forward/forced_routing.h"
#include "engine/model/st_out.h"
#include "policy/builtins.h"
#include "policy/replay/replay.h"
#include "policy/record/trace.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/log.h"
#include "vmm/format/gguf.h"
#include "vmm/topo/memory_room.h"

void fault_sweep_part(const char *name, void (*body)(const struct fault_plan *plan, void *ctx),
                      void *ctx, const char *sites_path)
{
    const uint32_t runs = fault_sweep(FAULT_ANY, body, ctx);

    fault_write_failed(sites_path);
    fprintf(stderr, "  %s: %u sites, %u runs\n", name, fault_sites_failed(FAULT_ANY), runs);
}

void fault_write_file(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");

    CHECK(out != NULL);
    CHECK(fputs(text, out) >= 0);
    CHECK_EQ(fclose(out), 0);
}

/* Model directories with several weight files. */
static void shards_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_checkpoint *checkpoint = NULL;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_checkpoint_open("tests/data/models/qwen3moe-tiny-nonorm", &checkpoint);
    fault_end();
    if (status != MP_OK) {
        fault_check_error(status);
        CHECK_EQ(mp_checkpoint_open("tests/data/models/qwen3moe-tiny-nonorm", &checkpoint), MP_OK);
    }
    mp_checkpoint_close(checkpoint);
}

/* By its second part: the first is looked for, and what was read is dropped. */
static void gguf_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_gguf *gguf = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_gguf_open(ctx, &gguf);
    fault_end();
    if (status != MP_OK) {
        fault_check_error(status);
        CHECK_EQ(mp_gguf_open(ctx, &gguf), MP_OK);
    }
    CHECK_EQ(mp_gguf_count(gguf), 2);
    mp_gguf_close(gguf);
}

static void chain_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_backend_config config = { .numa_node = -1, .huge_pages = true };
    struct mp_backend *backend = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_backend_open(ctx, &config, &backend);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_backend_close(backend);
}

static void gpu_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_gpu *gpu = NULL;
    struct mp_gemm *gemm = NULL;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_gpu_open(0, &gpu);
    if (status == MP_OK)
        status = mp_gemm_open(gpu, MP_GEMM_OWN, 1, &gemm);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_gemm_close(gemm);
    mp_gpu_close(gpu);
}

static void log_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_log_config config = { .levels = "warn" };

    (void)ctx;
    snprintf(config.file, sizeof(config.file), "%.900s/log.txt", test_tmpdir());
    fault_begin(plan);
    (void)mp_log_init(&config); /* without its file it writes to stderr */
    fault_end();
    mp_log_fini();
}

/* The files of a machine with one control group, whatever this machine has. */
static void make_group(const char *root)
{
    static const char *const dirs[] = { "proc",   "proc/self",     "sys",
                                        "sys/fs", "sys/fs/cgroup", "sys/fs/cgroup/a" };
    static const char *const files[][2] = {
        { "proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n" },
        { "proc/self/cgroup", "0::/a\n" },
        { "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" },
        { "sys/fs/cgroup/a/memory.max", "1073741824\n" },
        { "sys/fs/cgroup/a/memory.current", "4096\n" },
        { "sys/fs/cgroup/a/memory.stat", "inactive_file 4096\n" },
    };
    char path[4300];

    CHECK_EQ(mkdir(root, 0700), 0);
    for (size_t i = 0; i < MP_ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, dirs[i]);
        CHECK_EQ(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, files[i][0]);
        fault_write_file(path, files[i][1]);
    }
}

/* What cannot be read counts as no limit, never as a smaller or a random one. */
static void memory_room_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_memory_room room;

    fault_begin(plan);
    mp_memory_room_read(ctx, &room);
    fault_end();
    CHECK(room.limit_bytes == UINT64_C(1) << 30 || room.limit_bytes == UINT64_MAX);
    CHECK(room.total_bytes == UINT64_C(4) << 30 || room.total_bytes == 0);
}

static void trace_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_trace_reader *reader = NULL;
    struct mp_trace_row row;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_trace_open(ctx, &reader);
    if (status == MP_OK)
        status = mp_trace_read(reader, &row);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    else
        CHECK(row.experts != NULL && row.experts[0] == 2 && row.experts[1] == 0);
    mp_trace_reader_destroy(reader);
}

/* Read a trace and replay it: with the offline optimum, and with a policy, in both accountings. */
static void replay_once(const struct fault_plan *plan, void *ctx)
{
    static const char *const evict[] = { "belady", "lru" };
    struct mp_replay_trace trace = { 0 };
    struct mp_replay_result result;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_replay_trace_read(ctx, &trace);
    for (int i = 0; i < 4 && status == MP_OK; i++) {
        const struct mp_replay_config config = {
            .evict = evict[i % 2],
            .partition = "global",
            .predict = i == 1 ? "history" : NULL,
            .accounting = i < 2 ? MP_REPLAY_PAGER : MP_REPLAY_CURVE,
            .budget_bytes = 4 * trace.expert_bytes,
        };

        status = mp_replay(&trace, &config, &result);
    }
    mp_replay_trace_fini(&trace);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
}

static void forced_routing_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_forced_routing *from = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_forced_routing_load(ctx, 1, 4, 1, &from);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_forced_routing_destroy(from);
}

/* The probe's file: what cannot be kept or found again is measured again, and is no error. */
static void probe_file_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_probe_shape shape = { .hidden = 64, .channels = 32 };
    struct mp_probe probe = { .shape = shape, .uuid = "GPU-0", .driver = 13000 };
    bool kept;

    mp_error_clear();
    fault_begin(plan);
    kept = mp_probe_store(ctx, &probe);
    if (mp_probe_load(ctx, "GPU-0", 13000, &shape, &probe))
        CHECK(kept || plan != NULL);
    (void)mp_probe_load("auto", "GPU-none", 13000, &shape, &probe);
    fault_end();
    CHECK_EQ(mp_error_last()->status, MP_OK);
}

static const struct mp_model_id llapor_id = { .layers = 2, .experts = 4, .top_k = 2, .hidden = 8 };

static void write_llapor(const char *path)
{
    static const struct mp_st_out_tensor tensors[] = {
        { "layer.1.pca.weight", MP_DTYPE_F32, 2, { 2, 8 } },
        { "layer.1.pca.bias", MP_DTYPE_F32, 1, { 2 } },
        { "layer.1.in.weight", MP_DTYPE_F32, 2, { 3, 10 } },
        { "layer.1.in.bias", MP_DTYPE_F32, 1, { 3 } },
        { "layer.1.out.weight", MP_DTYPE_F32, 2, { 4, 3 } },
        { "layer.1.out.bias", MP_DTYPE_F32, 1, { 4 } },
    };
    struct mp_st_out out;

    CHECK_EQ(
        mp_st_out_open(&out, path, MP_LLAPOR_FORMAT, &llapor_id, 1, tensors, MP_ARRAY_LEN(tensors)),
        MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(tensors); i++) {
        for (uint64_t b = 0; b < mp_st_out_bytes(&tensors[i]); b++)
            fputc(0, out.out.file);
    }
    CHECK_EQ(mp_st_out_commit(&out), MP_OK);
}

/* The file, and an engine's scratch for it. */
static void llapor_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_engine engine = { .policies.predict_ops = &mp_predict_llapor,
                                .shape = { .tokens_max = 2, .experts = 4 } };
    struct mp_llapor *llapor = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_llapor_load(AT_FDCWD, ctx, &llapor_id, &llapor);
    engine.config.llapor = llapor;
    engine.config.llapor_learns = true;
    if (status == MP_OK)
        status = mp_engine_predict_create(&engine);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    else
        CHECK(llapor->nets[0].width == 3 && llapor->nets[0].inputs == 2);
    mp_engine_predict_destroy(&engine);
    mp_llapor_destroy(llapor);
}

/* A file that has become shorter than it was when it was opened. */
static void truncated_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_files *files = NULL;
    uint32_t index;
    char buffer[64];
    enum mp_status status;

    fault_write_file(ctx, "0123456789");
    mp_error_clear();
    fault_begin(plan);
    status = mp_files_create(&files);
    if (status == MP_OK)
        status = mp_files_add(files, AT_FDCWD, ctx, &index);
    if (status == MP_OK) {
        (void)!truncate(ctx, 5);
        status = mp_files_read(files, index, 0, 10, buffer);
        CHECK(status == MP_ERR_IO);
    }
    fault_end();
    fault_check_error(status);
    mp_files_destroy(files);
}

/* Every call has something to fall back on, but the memory for a block and the reads themselves. */
static void doctor_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX];
    struct mp_doctor_facts facts;
    struct mp_topology *topology = NULL;
    struct mp_files *files = NULL;
    uint32_t index;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_topology_load(NULL, &topology);
    if (status == MP_OK)
        status = mp_files_create(&files);
    if (status == MP_OK)
        status = mp_files_add(files, AT_FDCWD, ctx, &index);
    if (status == MP_OK) {
        mp_doctor_read("", topology, &facts);
        CHECK(mp_doctor_judge(&facts, findings) > 0);
        status = mp_doctor_read_disk(files, mp_clock_monotonic(), &facts);
        CHECK(status != MP_OK || facts.disk_bytes_per_s > 0);
    }
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_files_destroy(files);
    mp_topology_destroy(topology);
}

void fault_sweep_single_calls(const char *sites_path)
{
    static const struct mp_trace_shape shape = { "m", 1, 4, 2, 4096, false };
    static const uint32_t experts[] = { 2, 0 };
    static const float weights[] = { 0.75f, 0.25f };
    const struct mp_trace_row row = { .experts = experts, .weights = weights };
    struct mp_trace_writer *writer;
    char path[4200], parts[2][GGUF_PATH_BYTES];

    fault_sweep_part("shards", shards_once, NULL, sites_path);
    gguf_parts(parts, "b", 2);
    fault_sweep_part("GGUF", gguf_once, parts[1], sites_path);
    fault_sweep_part("backend chain", chain_once, (char[]){ "trace:fault:host" }, sites_path);
    fault_sweep_part("cuda backend", chain_once, (char[]){ "cuda" },
                     sites_path); /* on the fake driver */
    fault_sweep_part("cuda device", gpu_once, NULL, sites_path);
    fault_sweep_part("log", log_once, NULL, sites_path);
    snprintf(path, sizeof(path), "%s/machine", test_tmpdir());
    make_group(path);
    fault_sweep_part("memory room", memory_room_once, path, sites_path);
    fault_sweep_part("doctor", doctor_once, (char[]){ "models/tiny-moe/model.safetensors" },
                     sites_path);
    snprintf(path, sizeof(path), "%s/trace.txt", test_tmpdir());
    CHECK_EQ(mp_trace_create(path, &shape, &writer), MP_OK);
    mp_trace_write(writer, &row);
    CHECK_EQ(mp_trace_close(writer), MP_OK);
    fault_sweep_part("trace", trace_once, path, sites_path);
    fault_sweep_part("replay", replay_once, path, sites_path);
    snprintf(path, sizeof(path), "%s/route.csv", test_tmpdir());
    fault_write_file(path, "# route_trace v1\n"
                           "# model=m arch=a n_layer=1 n_expert=4 n_expert_used=1\n"
                           "# layer=0 expert_bytes=10 dense_bytes=5\n"
                           "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
                           "0,0,0,0,0,3,0.5,0,10\n"
                           "0,1,1,0,0,2,0.5,0,10\n");
    fault_sweep_part("route_trace", replay_once, path, sites_path);
    fault_sweep_part("forced routing", forced_routing_once, path, sites_path);
    fault_sweep_part("probe file", probe_file_once, (void *)test_tmpdir(), sites_path);
    snprintf(path, sizeof(path), "%s/llapor.safetensors", test_tmpdir());
    write_llapor(path);
    fault_sweep_part("trained predictors", llapor_once, path, sites_path);
    snprintf(path, sizeof(path), "%s/short.bin", test_tmpdir());
    fault_sweep_part("truncated file", truncated_once, path, sites_path);
}
