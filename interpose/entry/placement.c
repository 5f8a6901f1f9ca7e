/*
 * Where memory goes is the program's own affair: numactl and the like stand before it, and its
 * threads are not ours to place for. The host backend asks libnuma only where a node is given,
 * which is never here; these stand in for the library, whose archive cannot be linked into a shared
 * object, so that it need not be installed.
 */
#include <numa.h>
#include <numaif.h>
#include <stddef.h>

struct bitmask *numa_all_nodes_ptr;

int numa_available(void)
{
    return -1;
}

int numa_max_node(void)
{
    return 0;
}

int numa_bitmask_isbitset(const struct bitmask *mask, unsigned n)
{
    (void)mask;
    (void)n;
    return 0;
}

struct bitmask *numa_bitmask_setbit(struct bitmask *mask, unsigned n)
{
    (void)n;
    return mask;
}

struct bitmask *numa_allocate_nodemask(void)
{
    return NULL;
}

void numa_bitmask_free(struct bitmask *mask)
{
    (void)mask;
}

long mbind(void *start, unsigned long bytes, int mode, const unsigned long *mask,
           unsigned long mask_max, unsigned flags)
{
    (void)start;
    (void)bytes;
    (void)mode;
    (void)mask;
    (void)mask_max;
    (void)flags;
    return -1;
}
