/*
 * A program outside the tree: reads every expert of a small file through libmoepager and compares.
 * Usage: embed FILE, which must hold LAYERS * EXPERTS experts of BYTES bytes each, and nothing
 * else.
 */
#include <moepager.h>

#include <stdio.h>
#include <string.h>

#define LAYERS 3u
#define EXPERTS 8u
#define BYTES 12288u

static unsigned char expected[LAYERS * EXPERTS * BYTES];

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, moepager_error_code(), moepager_error_text());
    return 1;
}

static int run_layer(struct moepager *pager, uint32_t layer, const uint32_t *experts,
                     uint32_t count)
{
    struct moepager_ready ready;

    if (moepager_begin(pager, layer, experts, NULL, count) != MOEPAGER_OK)
        return failed("begin");
    for (;;) {
        if (moepager_next(pager, &ready) != MOEPAGER_OK)
            return failed("next");
        if (ready.index == MOEPAGER_NONE)
            break;
        if (memcmp(ready.pieces[0], expected + (layer * EXPERTS + experts[ready.index]) * BYTES,
                   BYTES) != 0)
            return failed("wrong bytes");
        if (moepager_done(pager, ready.index) != MOEPAGER_OK)
            return failed("done");
    }
    return moepager_end(pager) == MOEPAGER_OK ? 0 : failed("end");
}

int main(int argc, char **argv)
{
    const char *files[1];
    struct moepager_piece pieces[LAYERS * EXPERTS];
    const uint32_t experts[3] = { 1, 4, 7 };
    struct moepager_config config = MOEPAGER_CONFIG_INIT;
    struct moepager_counters counters;
    struct moepager *pager;
    FILE *file;
    int bad = 0;

    if (argc != 2 || (file = fopen(argv[1], "rb")) == NULL)
        return 2;
    if (fread(expected, 1, sizeof(expected), file) != sizeof(expected))
        return 2;
    fclose(file);
    files[0] = argv[1];
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        pieces[i].file = 0;
        pieces[i].offset_bytes = (uint64_t)i * BYTES;
        pieces[i].bytes = BYTES;
    }
    config.files = files;
    config.file_count = 1;
    config.layers = LAYERS;
    config.experts = EXPERTS;
    config.top_k = 3;
    config.pieces = pieces;
    config.pieces_per_expert = 1;
    config.budget_bytes = 6 * 16384;
    if (moepager_open(&config, &pager) != MOEPAGER_OK)
        return failed("open");
    for (unsigned i = 0; i < 4 * LAYERS && !bad; i++)
        bad = run_layer(pager, i % LAYERS, experts, 3);
    moepager_get_counters(pager, &counters);
    moepager_close(pager);
    if (!bad)
        printf("moepager %s: %llu hits, %llu misses, equal\n", moepager_version(),
               (unsigned long long)counters.hits, (unsigned long long)counters.misses);
    return bad;
}
