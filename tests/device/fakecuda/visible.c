/*
 * Which devices of the machine a process sees, and as what: CUDA_VISIBLE_DEVICES, and slices (MIG).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/state.h"

#define SLICES 8 /* of a device's memory */

/* Of device `physical` of the machine, or of its first slice, which has one of its own. */
void fake_uuid(unsigned physical, struct mp_cu_uuid *uuid)
{
    for (unsigned i = 0; i < 16; i++)
        uuid->bytes[i] = (char)((fake.mig ? 0xa0 : 0xf0) + physical + i);
}

size_t fake_memory_of_device(void)
{
    return fake.mig ? fake.memory_bytes / SLICES / fake.granule * fake.granule : fake.memory_bytes;
}

/* "GPU-f0f1f2f3-...", or its beginning. */
static bool is_uuid(const char *text, size_t bytes, unsigned physical)
{
    char whole[48], *at = whole + 4;
    struct mp_cu_uuid uuid;

    fake_uuid(physical, &uuid);
    memcpy(whole, fake.mig ? "MIG-" : "GPU-", 5);
    for (unsigned i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)uuid.bytes[i]);
    return bytes > 4 && strncmp(text, whole, bytes) == 0;
}

/* The device that a part of the list names, or FAKE_DEVICES_MAX. */
static unsigned find(const char *text, size_t bytes, unsigned devices)
{
    unsigned found = FAKE_DEVICES_MAX;

    for (unsigned d = 0; d < devices; d++) {
        char number[16];

        snprintf(number, sizeof(number), "%u", d);
        if ((strlen(number) == bytes && memcmp(text, number, bytes) == 0) ||
            is_uuid(text, bytes, d))
            found = d;
    }
    return found;
}

/* What is no device, or there already, ends the list. */
void fake_choose_visible(unsigned devices)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");

    fake.devices = 0;
    fake.hidden = text != NULL && devices > 0;
    while (text == NULL && fake.devices < devices) {
        fake.visible[fake.devices] = fake.devices;
        fake.devices++;
    }
    while (text != NULL && *text != '\0') {
        const size_t bytes = strcspn(text, ",");
        const unsigned device = find(text, bytes, devices);

        for (unsigned d = 0; d < fake.devices; d++) {
            if (fake.visible[d] == device)
                return;
        }
        if (device == FAKE_DEVICES_MAX)
            return;
        fake.visible[fake.devices++] = device;
        text += bytes + (text[bytes] == ',');
    }
}
