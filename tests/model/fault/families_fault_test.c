/*
 * Runs of families with state or paths of their own, with every call that can fail made to fail
 * (engine_fault_run.h): latent attention, delta networks, short convolutions, sinks with experts in
 * MXFP4, layers with heads of another size, layers that draft tokens.
 *
 * Variants: once, the first of them, each call in one way, with a ring; full, all of them in every
 * way, also with threads that read.
 */
#include <stdio.h>
#include <string.h>

#include "tests/model/fault/engine_fault_run.h"
#include "tests/support/test.h"

#define DATA "tests/data/models/"

/* Recurrent layers cannot take back a wrong guess. */
static const struct family {
    const char *name;
    const char *drafts; /* struct fault_run, draft_model */
} families[] = {
    { DATA "deepseek_v3-draft", "mtp" },
    { DATA "qwen3_next-a", NULL },
    { DATA "lfm2_moe-a", NULL },
    { DATA "gpt_oss-mxfp4", "" },
    { DATA "gemma4_text-a", "" },
    /* Much as the first two. */
    { DATA "deepseek_v2-a", "" },
    { DATA "qwen3_5_moe_text-a", NULL },
};

#define ONCE 5

int main(int argc, char **argv)
{
    const bool full = argc > 1 && strcmp(argv[1], "full") == 0;

    (void)fault_run_init(!full);
    for (size_t i = 0; i < (full ? MP_ARRAY_LEN(families) : ONCE); i++) {
        const char *name = families[i].name, *drafts = families[i].drafts;
        const struct fault_run ring = { name, name, "cpu", MP_IO_AUTO, true, "gate-lru", drafts };
        const struct fault_run threads = {
            name, name, "cpu", MP_IO_BUFFERED, false, "lru", drafts
        };

        fault_run_sweep(&ring, NULL);
        if (full)
            fault_run_sweep(&threads, NULL);
    }
    return 0;
}
