/* Sweeps over every kind of tokenizer and over every policy; see engine_fault_parts.h. */
#include "tests/model/fault/engine_fault_parts.h"

#include "engine/text/chat.h"
#include "policy/builtins.h"
#include "tests/support/fault/wrap.h"
#include "tests/unit/policy/calibration.h"
#include "tests/support/test.h"
#include "vmm/base/log.h"

/* Marks to be sorted, a word longer than any buffer's first size, broken bytes, special tokens. */
static const char tokenizer_text[] =
    "Hello  world\xcc\x81\xcc\xa3\xcc\x81\xcc\xa3 <|im_start|> <s> \xff\xf0\x9f\x98\x80 "
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnop"
    "qrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz 123 ";

struct tokenizer_case {
    const char *dir;
    uint32_t ids[1024];
    size_t count;
    char *text;
};

static enum mp_status stream(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    struct mp_detok *detok;
    const char *text;
    size_t bytes;
    enum mp_status status = mp_detok_create(tok, 0, &detok);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < ids->count && status == MP_OK; i++)
        status = mp_detok_push(detok, ids->ids[i], &text, &bytes);
    if (status == MP_OK)
        status = mp_detok_finish(detok, &text, &bytes);
    mp_detok_destroy(detok);
    return status;
}

static enum mp_status use_tokenizer(const struct tokenizer_case *c, struct mp_ids *ids,
                                    char **text_p)
{
    const struct mp_span spans[] = { { tokenizer_text, 12, true },
                                     { tokenizer_text + 12, sizeof(tokenizer_text) - 13, false } };
    struct mp_tokenizer *tok = NULL;
    size_t bytes;
    enum mp_status status = mp_tokenizer_load(c->dir, &tok);

    if (status == MP_OK)
        status = mp_tokenizer_encode(tok, tokenizer_text, sizeof(tokenizer_text) - 1,
                                     MP_ENCODE_ADD_SPECIAL, ids);
    if (status == MP_OK)
        status = mp_tokenizer_encode_spans(tok, spans, 2, 0, ids);
    if (status == MP_OK)
        status = stream(tok, ids);
    if (status == MP_OK)
        status = mp_tokenizer_decode(tok, ids->ids, ids->count, 0, text_p, &bytes);
    mp_tokenizer_destroy(tok);
    return status;
}

static void tokenizer_once(const struct fault_plan *plan, void *ctx)
{
    const struct tokenizer_case *c = ctx;
    struct mp_ids ids = { 0 };
    char *text = NULL;
    enum mp_status status;
    uint64_t hits;

    mp_error_clear();
    fault_begin(plan);
    status = use_tokenizer(c, &ids, &text);
    hits = fault_end();
    if (status != MP_OK) {
        CHECK(hits > 0);
        fault_check_error(status);
        mp_ids_free(&ids);
        CHECK_EQ(use_tokenizer(c, &ids, &text), MP_OK);
    }
    CHECK_EQ(ids.count, c->count);
    CHECK(memcmp(ids.ids, c->ids, c->count * sizeof(ids.ids[0])) == 0);
    CHECK_STR(text, c->text);
    mp_ids_free(&ids);
    free(text);
}

void fault_sweep_tokenizers(const char *sites_path)
{
    static const char *const dirs[] = { "models/tiny-moe", "tests/data/tokenizers/llama",
                                        "tests/data/tokenizers/nfkc", "tests/data/tokenizers/nfd",
                                        "tests/data/tokenizers/unigram" };

    for (size_t i = 0; i < MP_ARRAY_LEN(dirs); i++) {
        static struct tokenizer_case c;
        struct mp_ids ids = { 0 };

        c.dir = dirs[i];
        CHECK_EQ(use_tokenizer(&c, &ids, &c.text), MP_OK);
        CHECK(ids.count > 100 && ids.count <= MP_ARRAY_LEN(c.ids));
        c.count = ids.count;
        memcpy(c.ids, ids.ids, ids.count * sizeof(ids.ids[0]));
        mp_ids_free(&ids);
        fault_sweep_part(dirs[i], tokenizer_once, &c, sites_path);
        free(c.text);
    }
}

/* ctx: what a calibration learned, or NULL: then without the policies that need it. */
static void policies_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_shape shape = {
        .layers = 2,
        .experts = 4,
        .top_k = 2,
        .tokens_max = 8,
        .slots = 4,
        .expert_bytes = 4096,
        .calibration = ctx,
    };
    const struct mp_policy_info *info;

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            struct mp_policy_names names = { 0 };
            struct mp_profile chosen;
            struct mp_policies set = { 0 };
            enum mp_status status;

            if (info->calibrated && ctx == NULL)
                continue;
            names.policy[kind] = info->name;
            CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
            fault_begin(plan);
            status = mp_policies_create(&chosen, &shape, NULL, &set);
            fault_end();
            if (status != MP_OK)
                CHECK_EQ(status, MP_ERR_NO_MEMORY);
            else
                mp_policies_destroy(&set);
            CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
            mp_policies_destroy(&set);
        }
    }
}

void fault_sweep_policies(const char *sites_path)
{
    fault_sweep_part("policies", policies_once, NULL, sites_path);
    fault_sweep_part("calibrated policies", policies_once,
                     (void *)(uintptr_t)test_calibration(2, 4), sites_path);
}
