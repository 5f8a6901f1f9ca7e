/*
 * A program outside the tree with an event loop: two pagers of one file, each with a budget of its
 * own, work at the same time in one thread that waits in poll() only. Then one budget shrinks, and
 * the other one grows.
 * Usage: events FILE, as of embed.c.
 */
#include <moepager.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 3u
#define EXPERTS 8u
#define BYTES 12288u
#define PAGERS 2u
#define COUNT 3u

struct work {
    struct moepager *pager;
    uint32_t layer, rounds, experts[COUNT];
    int fd;
    int busy; /* a layer is open */
};

static unsigned char expected[LAYERS * EXPERTS * BYTES];

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, moepager_error_code(), moepager_error_text());
    return 1;
}

static int open_pager(const char *path, uint64_t budget_bytes, struct work *work)
{
    struct moepager_piece pieces[LAYERS * EXPERTS];
    struct moepager_config config = MOEPAGER_CONFIG_INIT;

    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        pieces[i].file = 0;
        pieces[i].offset_bytes = (uint64_t)i * BYTES;
        pieces[i].bytes = BYTES;
    }
    config.files = &path;
    config.file_count = 1;
    config.layers = LAYERS;
    config.experts = EXPERTS;
    config.top_k = COUNT;
    config.pieces = pieces;
    config.pieces_per_expert = 1;
    config.budget_bytes = budget_bytes;
    if (moepager_open(&config, &work->pager) != MOEPAGER_OK)
        return failed("open");
    return moepager_event_fd(work->pager, &work->fd) == MOEPAGER_OK ? 0 : failed("event_fd");
}

/* As far as one can come without waiting: to the end of the layer, or until something is read. */
static int advance(struct work *work)
{
    struct moepager_ready ready;

    if (!work->busy &&
        moepager_begin(work->pager, work->layer, work->experts, NULL, COUNT) != MOEPAGER_OK)
        return failed("begin");
    work->busy = 1;
    for (;;) {
        if (moepager_try_next(work->pager, &ready) != MOEPAGER_OK)
            return failed("try_next");
        if (ready.index == MOEPAGER_PENDING)
            return 0;
        if (ready.index == MOEPAGER_NONE)
            break;
        if (memcmp(ready.pieces[0],
                   expected + (work->layer * EXPERTS + work->experts[ready.index]) * BYTES,
                   BYTES) != 0)
            return failed("wrong bytes");
        if (moepager_done(work->pager, ready.index) != MOEPAGER_OK)
            return failed("done");
    }
    if (moepager_end(work->pager) != MOEPAGER_OK)
        return failed("end");
    work->busy = 0;
    work->layer = (work->layer + 1) % LAYERS;
    work->rounds--;
    return 0;
}

/* Runs `rounds` layers of each pager; the two are never waited for but together. */
static int run(struct work *works, uint32_t rounds)
{
    for (uint32_t i = 0; i < PAGERS; i++)
        works[i].rounds = rounds;
    while (works[0].rounds > 0 || works[1].rounds > 0) {
        struct pollfd polled[PAGERS];
        uint32_t waiting = 0, active = 0;
        uint64_t count;

        for (uint32_t i = 0; i < PAGERS; i++) {
            if (works[i].rounds > 0 && advance(&works[i]) != 0)
                return 1;
            active += works[i].rounds > 0;
            waiting += works[i].rounds > 0 && works[i].busy;
            polled[i].fd = works[i].busy ? works[i].fd : -1;
            polled[i].events = POLLIN;
        }
        if (active == 0 || waiting < active)
            continue;
        if (poll(polled, PAGERS, 10000) <= 0)
            return failed("poll");
        for (uint32_t i = 0; i < PAGERS; i++) {
            if (polled[i].fd >= 0 && polled[i].revents != 0 &&
                read(works[i].fd, &count, sizeof(count)) < 0)
                return failed("read");
        }
    }
    return 0;
}

static int print(const char *when, const struct work *works)
{
    for (uint32_t i = 0; i < PAGERS; i++) {
        struct moepager_statistics s = MOEPAGER_STATISTICS_INIT;

        if (moepager_get_statistics(works[i].pager, &s) != MOEPAGER_OK)
            return failed("statistics");
        printf("%s, pager %u: %llu experts in %llu bytes, %llu hits, %llu misses, by %s\n", when, i,
               (unsigned long long)s.slots, (unsigned long long)s.budget_bytes,
               (unsigned long long)s.hits, (unsigned long long)s.misses, s.reader);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct work works[PAGERS] = { { 0, 0, 0, { 0, 3, 6 }, -1, 0 },
                                  { 0, 0, 0, { 1, 3, 7 }, -1, 0 } };
    FILE *file;
    int bad;

    if (argc != 2 || (file = fopen(argv[1], "rb")) == NULL)
        return 2;
    if (fread(expected, 1, sizeof(expected), file) != sizeof(expected))
        return 2;
    fclose(file);
    bad = open_pager(argv[1], 4 * 16384, &works[0]) || open_pager(argv[1], 12 * 16384, &works[1]) ||
          run(works, 4 * LAYERS) || print("at first", works);
    if (!bad && (moepager_set_budget(works[1].pager, 4 * 16384) != MOEPAGER_OK ||
                 moepager_set_budget(works[0].pager, MOEPAGER_BUDGET_ALL) != MOEPAGER_OK))
        bad = failed("set_budget");
    if (!bad)
        bad = run(works, 4 * LAYERS) || print("then", works);
    for (uint32_t i = 0; i < PAGERS; i++)
        moepager_close(works[i].pager);
    if (!bad)
        printf("equal\n");
    return bad;
}
