/*
 * What operations touch, and the laws about it.
 */
#include <stdlib.h>

#include "tests/device/fakecuda/stream.h"

/*
 * How many declared accesses of queued operations fall into each 64 KiB of addresses: all, and
 * writes. Far places share a count. Where it is 0 no operation has to be looked at, so that a long
 * queue stays cheap.
 */
#define PLACE_SHIFT 16
#define PLACES 16384u

static unsigned uses[2][PLACES];

static void count_access(const struct fake_access *access, bool more)
{
    const unsigned long long first = access->address >> PLACE_SHIFT;
    const unsigned long long last = (access->address + access->bytes - 1) >> PLACE_SHIFT;

    for (unsigned long long p = first; p <= last && p - first < PLACES; p++) {
        uses[0][p % PLACES] += more ? 1u : -1u;
        if (access->write)
            uses[1][p % PLACES] += more ? 1u : -1u;
    }
}

static bool may_be_used(unsigned long long address, size_t bytes, bool only_writes)
{
    const unsigned long long first = address >> PLACE_SHIFT;
    const unsigned long long last = (address + bytes - 1) >> PLACE_SHIFT;

    for (unsigned long long p = first; p <= last && p - first < PLACES; p++) {
        if (uses[only_writes][p % PLACES] > 0)
            return true;
    }
    return false;
}

static bool add(struct fake_op *op, const struct fake_access *access)
{
    if (op->access_count == op->access_max) {
        const size_t max = op->access_max > 0 ? 2 * op->access_max : 8;
        struct fake_access *more = realloc(op->accesses, max * sizeof(*more));

        if (more == NULL)
            return false;
        op->accesses = more;
        op->access_max = max;
    }
    op->accesses[op->access_count++] = *access;
    if (op->counted)
        count_access(access, true);
    return true;
}

bool fake_declare(struct fake_op *op, unsigned long long address, size_t bytes, bool write)
{
    while (bytes > 0) {
        const struct fake_region *region = fake_region_at(address);
        const int need = write ? MP_CU_ACCESS_READ_WRITE : MP_CU_ACCESS_READ;
        struct fake_access access = { .address = address, .bytes = bytes, .write = write };

        if (region == NULL || (region->device_access & need) != need) {
            fake_violation("%s %s %#llx (%s)", op->name, write ? "writes" : "reads", address,
                           region == NULL ? "a hole" : "without access");
            return false;
        }
        /* What is mapped here came after the launch: bytes that were not meant. */
        if (op->queued != 0 && region->born > op->queued)
            fake_violation("%s %s %#llx, which was mapped after it had been queued", op->name,
                           write ? "writes" : "reads", address);
        access.physical = region->physical;
        access.offset = address - region->address;
        access.host_memory = region->host_memory;
        if (access.bytes > region->bytes - access.offset)
            access.bytes = (size_t)(region->bytes - access.offset);
        if (!add(op, &access))
            abort();
        address += access.bytes;
        bytes -= access.bytes;
    }
    return true;
}

void fake_count(struct fake_op *op)
{
    op->counted = true;
    for (size_t i = 0; i < op->access_count; i++)
        count_access(&op->accesses[i], true);
}

void fake_undeclare(struct fake_op *op)
{
    if (op->counted) {
        for (size_t i = 0; i < op->access_count; i++)
            count_access(&op->accesses[i], false);
    }
    op->access_count = 0;
}

static bool overlap(const struct fake_access *a, const struct fake_access *b)
{
    return a->physical == b->physical && (a->write || b->write) &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static const struct fake_access *conflict(const struct fake_op *a, const struct fake_op *b)
{
    for (size_t i = 0; i < a->access_count; i++) {
        for (size_t k = 0; k < b->access_count; k++) {
            if (overlap(&a->accesses[i], &b->accesses[k]))
                return &a->accesses[i];
        }
    }
    return NULL;
}

static bool is_before(const struct fake_branch *a, const struct fake_branch *b)
{
    return a->number <= b->clock.seen[a->stream] ||
           (a->stream == b->stream && a->number <= b->number);
}

/* Against the rest of its graph, which a device may run in any order that its edges allow. */
static void check_branches(struct fake_op *op)
{
    struct fake_op *other = op->launch != 0 ? fake_streams[op->stream].first : NULL;

    for (; other != NULL; other = other->next) {
        const struct fake_access *at;

        if (other->launch != op->launch || (op->raced && other->raced) ||
            is_before(&op->branch, &other->branch) || is_before(&other->branch, &op->branch))
            continue;
        at = conflict(op, other);
        if (at == NULL)
            continue;
        op->raced = other->raced = true;
        fake_violation("%s and %s in branches of one graph touch %#llx and nothing orders them",
                       op->name, other->name, at->address);
    }
}

void fake_check_order(struct fake_op *op)
{
    check_branches(op);
    for (unsigned s = 0; op->access_count > 0 && s < FAKE_STREAMS_MAX; s++) {
        struct fake_op *other = s != op->stream ? fake_streams[s].first : NULL;

        for (; other != NULL; other = other->next) {
            const struct fake_access *at;

            if (other->number <= op->clock.seen[s] || op->number <= other->clock.seen[op->stream] ||
                (op->raced && other->raced))
                continue;
            at = conflict(op, other);
            if (at == NULL)
                continue;
            op->raced = other->raced = true;
            fake_violation("%s (stream %u) and %s (stream %u) touch %#llx and nothing orders "
                           "them",
                           op->name, op->stream, other->name, s, at->address);
        }
    }
}

static const struct fake_op *user_of(unsigned long long address, size_t bytes, bool only_writes)
{
    if (!may_be_used(address, bytes, only_writes))
        return NULL;
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        for (const struct fake_op *op = fake_streams[s].first; op != NULL; op = op->next) {
            if (op->number <= fake_host.seen[s])
                continue;
            for (size_t i = 0; i < op->access_count; i++) {
                const struct fake_access *a = &op->accesses[i];

                if (a->address < address + bytes && address < a->address + a->bytes &&
                    (a->write || !only_writes))
                    return op;
            }
        }
    }
    return NULL;
}

bool fake_is_used(unsigned long long address, size_t bytes, bool only_writes)
{
    return user_of(address, bytes, only_writes) != NULL;
}

void fake_check_unused(const char *what, unsigned long long address, size_t bytes)
{
    const struct fake_op *op = user_of(address, bytes, false);

    if (op != NULL)
        fake_violation("%s of [%#llx, +%zu) under %s on stream %u, whose end the host has not seen",
                       what, address, bytes, op->name, op->stream);
    for (size_t i = 0; i < sizeof(fake.operations) / sizeof(fake.operations[0]); i++) {
        const struct fake_operation *o = &fake.operations[i];

        if (o->used && o->address < address + bytes && address < o->address + o->bytes)
            fake_violation("%s of [%#llx, +%zu) under an unfinished %s of [%#llx, +%zu)", what,
                           address, bytes, o->write ? "write" : "read", o->address, o->bytes);
    }
}
