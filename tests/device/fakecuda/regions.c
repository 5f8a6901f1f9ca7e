/*
 * Which addresses have memory behind them, and who may touch it.
 *
 * Device memory is closed to the program and open to the threads that are the device. Where the CPU
 * has protection keys, that is exact; elsewhere it is open to everybody while the device has
 * access.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/device/fakecuda/state.h"

#define REGIONS_MAX (FAKE_TABLE_MAX + 8192)

static struct fake_region *regions[REGIONS_MAX]; /* by address */
static size_t region_count;
static int device_key = -1; /* protection key of device memory */
static bool key_asked;

/* Number of regions that begin at or below the address. */
static size_t below(unsigned long long address)
{
    size_t low = 0, high = region_count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (regions[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fake_region *fake_region_at(unsigned long long address)
{
    const size_t n = below(address);

    if (n == 0 || address - regions[n - 1]->address >= regions[n - 1]->bytes)
        return NULL;
    return regions[n - 1];
}

struct fake_region *fake_region_in(unsigned long long address, size_t bytes)
{
    struct fake_region *region = fake_region_at(address);
    const size_t n = below(address);

    if (region != NULL)
        return region;
    return n < region_count && regions[n]->address - address < bytes ? regions[n] : NULL;
}

struct fake_region *fake_region_after(const struct fake_region *region)
{
    const size_t n = below(region->address);

    return n < region_count ? regions[n] : NULL;
}

struct fake_region *fake_region_add(const struct fake_region *region)
{
    const size_t n = below(region->address);
    struct fake_region *copy = region_count < REGIONS_MAX ? malloc(sizeof(*copy)) : NULL;

    if (copy == NULL)
        return NULL;
    *copy = *region;
    copy->born = ++fake.now;
    memmove(&regions[n + 1], &regions[n], (region_count - n) * sizeof(regions[0]));
    regions[n] = copy;
    region_count++;
    return copy;
}

void fake_region_remove(struct fake_region *region)
{
    const size_t n = below(region->address) - 1;

    region_count--;
    memmove(&regions[n], &regions[n + 1], (region_count - n) * sizeof(regions[0]));
    free(region);
}

unsigned fake_region_count(int kind)
{
    unsigned count = 0;

    for (size_t i = 0; i < region_count; i++)
        count += (int)regions[i]->kind == kind;
    return count;
}

static int protection(int access)
{
    return access == MP_CU_ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE
           : access == MP_CU_ACCESS_READ     ? PROT_READ
                                             : PROT_NONE;
}

/* Keys that nobody opened are closed, also in threads that exist already. */
static int key_of_device(void)
{
    if (!key_asked && fake_setting("FAKECUDA_KEYS", 1) != 0)
        device_key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    key_asked = true;
    return device_key;
}

bool fake_region_protect(const struct fake_region *region)
{
    void *place = (void *)(uintptr_t)region->address;
    const int key = key_of_device();

    if (region->host_access != MP_CU_ACCESS_NONE)
        return key < 0
                   ? mprotect(place, region->bytes, protection(region->host_access)) == 0
                   : pkey_mprotect(place, region->bytes, protection(region->host_access), 0) == 0;
    if (key < 0)
        return mprotect(place, region->bytes, protection(region->device_access)) == 0;
    return pkey_mprotect(place, region->bytes, protection(region->device_access), key) == 0;
}

void fake_become_device(void)
{
    if (key_of_device() >= 0)
        pkey_set(device_key, 0);
}

FAKE_EXPORT int fakecuda_keys(void)
{
    int key;

    pthread_mutex_lock(&fake.lock);
    key = key_of_device();
    pthread_mutex_unlock(&fake.lock);
    return key >= 0;
}
