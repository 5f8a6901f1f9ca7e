/* A made-up model and the program that maps it; see made_up.h. */
#include "tests/unit/interpose/made_up.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/ggml_tensors.h"
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define DENSE_BYTES (320u << 10)
#define ROUTER_BYTES (MADE_EXPERTS * 64u * 4u) /* the last ones of those */
#define TABLE_BYTES (1u << 20)
#define TENSORS (MADE_LAYERS * (MADE_KINDS + 2) + 1)

unsigned char *made_bytes;
uint64_t made_file_bytes;
_Atomic int made_mmap_fails = -1, made_mremap_fails = -1;
struct mp_paged_span made_span;
mp_find_fn made_find_more;
const char made_other_ggml = 0;

static char path[sizeof(test_tmpdir_path) + 32];
static uint64_t data_begin;

static const char *const names[] = { "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps" };

/* A table, then dense and expert tensors in turns; the experts of a layer start behind an odd dense
 * one. */
static uint64_t tensor_offset(uint32_t layer, uint32_t kind)
{
    const uint64_t experts = MADE_EXPERTS * MADE_EXPERT_BYTES;

    return TABLE_BYTES + layer * (DENSE_BYTES + 32 + MADE_KINDS * experts) + DENSE_BYTES + 32 +
           kind * experts;
}

uint64_t made_offset(uint32_t layer, uint32_t kind, uint32_t expert)
{
    return data_begin + tensor_offset(layer, kind) + expert * MADE_EXPERT_BYTES;
}

static void put_header(void)
{
    char name[64];

    gguf_begin(TENSORS, 2);
    gguf_text("general.architecture"), gguf_put(8, 4), gguf_text("made");
    gguf_number("made.expert_used_count", 4, MADE_TOP_K, 4);
    gguf_tensor("per_layer_token_embd.weight", 64, TABLE_BYTES / 256, 0, 0);
    for (uint32_t l = 0; l < MADE_LAYERS; l++) {
        snprintf(name, sizeof(name), "blk.%u.attn.weight", l + 1);
        gguf_tensor(name, 64, (DENSE_BYTES - ROUTER_BYTES) / 256, 0,
                    tensor_offset(l, 0) - DENSE_BYTES - 32);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", l + 1);
        gguf_tensor(name, 64, MADE_EXPERTS, 0, tensor_offset(l, 0) - ROUTER_BYTES - 32);
        for (uint32_t k = 0; k < MADE_KINDS; k++) {
            /* Block 0 has no experts. */
            snprintf(name, sizeof(name), "blk.%u.%s.weight", l + 1, names[k]);
            gguf_tensor_3d(name, 64, 49, MADE_EXPERTS, 0, tensor_offset(l, k));
        }
    }
    gguf_data(0);
}

const char *made_path(void)
{
    uint64_t state = 1;
    int fd;

    if (made_bytes != NULL)
        return path;
    put_header();
    data_begin = gguf_used;
    made_file_bytes = made_offset(MADE_LAYERS - 1, MADE_KINDS - 1, MADE_EXPERTS);
    made_bytes = malloc(made_file_bytes);
    CHECK(made_bytes != NULL);
    memcpy(made_bytes, gguf_out, gguf_used);
    for (uint64_t i = data_begin; i < made_file_bytes; i++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        made_bytes[i] = (unsigned char)(state >> 40);
    }
    snprintf(path, sizeof(path), "%s/made.gguf", test_tmpdir());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, made_bytes, made_file_bytes), (long long)made_file_bytes);
    close(fd);
    return path;
}

static bool fails(_Atomic int *countdown)
{
    return atomic_load(countdown) >= 0 && atomic_fetch_sub(countdown, 1) == 0;
}

/* System calls, so that tests that count what is mapped do not count what replaces it. */
static int real_munmap(void *at, size_t bytes)
{
    return (int)syscall(SYS_munmap, at, bytes);
}

/* A kernel may have taken away what is at the target before it refuses. */
static void *real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if (!fails(&made_mmap_fails))
        return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
    if ((flags & MAP_FIXED) != 0)
        (void)real_munmap(at, bytes);
    errno = ENOMEM;
    return MAP_FAILED;
}

static void *real_mremap(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at)
{
    if (!fails(&made_mremap_fails))
        return mremap(at, bytes, new_bytes, flags, new_at);
    (void)real_munmap(new_at, new_bytes);
    errno = ENOMEM;
    return MAP_FAILED;
}

static void *find(const void *site, const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        { "ggml_init", (void *)ggml_init },
        { "ggml_free", (void *)ggml_free },
        { "ggml_new_tensor_2d", (void *)ggml_new_tensor_2d },
        { "ggml_new_tensor_3d", (void *)ggml_new_tensor_3d },
        { "ggml_mul_mat_id", (void *)ggml_mul_mat_id },
        { "ggml_set_name", (void *)ggml_set_name },
        { "ggml_get_name", (void *)ggml_get_name },
        { "ggml_get_data", (void *)ggml_get_data },
        { "ggml_compute_forward_mul_mat_id_tiled", (void *)ggml_free },
    };

    if (site == &made_other_ggml)
        return NULL;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(functions[i].name, name) == 0)
            return functions[i].function;
    }
    return made_find_more != NULL ? made_find_more(site, name) : NULL;
}

void made_start(const char *budget, const char *hooks)
{
    const struct mp_host host = {
        .real = { .mmap = real_mmap,
                  .munmap = real_munmap,
                  .mremap = real_mremap,
                  .mprotect = mprotect,
                  .madvise = madvise,
                  .mlock = mlock,
                  .mlock2 = NULL },
        .span = &made_span,
        .find = find,
    };

    setenv("MOEPAGER_BUDGET", budget, 1);
    setenv("MOEPAGER_HOOKS", hooks, 1);
    CHECK(mp_interposer_table.start(&host));
}

static char *map(const struct mp_map_call *call)
{
    const bool wanted = mp_interposer_table.wants(call);
    char *at = (char *)syscall(SYS_mmap, NULL, call->bytes, call->prot, call->flags, call->fd,
                               call->offset);

    CHECK(at != MAP_FAILED);
    if (wanted)
        (void)mp_interposer_table.mapped(call, at);
    return at;
}

char *made_map(int fd, uint64_t bytes, int flags, uint64_t offset)
{
    return map(&(struct mp_map_call){ bytes, PROT_READ, flags, fd, (off_t)offset });
}

char *made_map_to_write(int fd, uint64_t bytes)
{
    return map(&(struct mp_map_call){ bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0 });
}

void made_unmap(char *at, uint64_t bytes)
{
    if (mp_paged_span_touches(&made_span, at, bytes))
        mp_interposer_table.leave(at, bytes);
    CHECK_EQ(real_munmap(at, bytes), 0);
}

bool made_is_paged(const char *at)
{
    struct mp_paged_part part;

    return mp_paged_span_touches(&made_span, at, 1) && mp_interposer_table.find_part(at, 1, &part);
}

static struct mp_ggml_tensor ids_of(const int32_t *ids, uint32_t tokens)
{
    return (struct mp_ggml_tensor){
        .ne = { MADE_TOP_K, tokens, 1, 1 },
        .nb = { 4, 4 * MADE_TOP_K },
        .data = ids,
    };
}

void made_read_expert(const char *base, uint32_t layer, uint32_t kind, uint32_t expert,
                      const int32_t *ids, uint32_t tokens)
{
    static const float input[64]; /* the same for all tokens */
    const struct mp_ggml_tensor rows_in = { .ne = { 64, 1, tokens, 1 },
                                            .nb = { 4, 256, 0, 0 },
                                            .data = input };
    const struct mp_ggml_tensor chosen = ids_of(ids, tokens);
    const struct mp_ggml_tensor weights = { .ne = { 64, 49, MADE_EXPERTS, 1 },
                                            .data = base + made_offset(layer, kind, 0) };
    const struct mp_ggml_tensor dst = { .src = { &weights, &rows_in, &chosen } };
    const uint64_t offset = made_offset(layer, kind, expert);

    mp_interposer_table.expert(NULL, &dst, expert, 1);
    CHECK(made_is_equal(base, offset, offset + MADE_EXPERT_BYTES));
}

void made_run_layer(const char *base, uint32_t layer, const int32_t *ids, uint32_t tokens)
{
    for (uint32_t k = 0; k < MADE_KINDS; k++) {
        for (uint32_t e = 0; e < MADE_EXPERTS; e++) {
            uint32_t rows = 0;

            for (uint32_t i = 0; i < tokens * MADE_TOP_K; i++)
                rows += ids[i] == (int32_t)e;
            if (rows > 0)
                made_read_expert(base, layer, k, e, ids, tokens);
        }
    }
}

bool made_announce(const char *base, uint32_t layer, const int64_t *ids, size_t count)
{
    return mp_interposer_table.routed(base + made_offset(layer, 0, 0), MADE_EXPERT_BYTES, ids,
                                      count);
}

void made_show_router(uint32_t layer, const int32_t *ids, uint32_t tokens)
{
    struct mp_ggml_tensor chosen = ids_of(ids, tokens);

    snprintf(chosen.name, sizeof(chosen.name), "ffn_moe_topk-%u", layer + 1);
    CHECK(mp_interposer_table.is_chosen(&chosen));
    mp_interposer_table.chosen(&chosen);
}

bool made_is_equal(const char *base, uint64_t begin, uint64_t end)
{
    return memcmp(base + begin, made_bytes + begin, end - begin) == 0;
}
