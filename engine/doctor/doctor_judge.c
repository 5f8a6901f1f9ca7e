/*
 * Facts of a machine -> findings. Reads nothing.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/doctor/doctor.h"
#include "vmm/base/assert.h"
#include "vmm/base/compiler.h"

#define GIB 1073741824.0
#define ROOM_LEAST_BYTES (UINT64_C(2) << 30)
#define DISK_SLOW (0.5 * GIB) /* per second; a solid-state disk on SATA */
#define MAPS_LEAST 65530      /* the kernel's default */

struct list {
    struct mp_doctor_finding *findings;
    size_t count;
};

/* `advice` may be NULL. */
static void add(struct list *list, const char *name, enum mp_doctor_verdict verdict,
                const char *advice, const char *format, ...) MP_PRINTF(5, 6);

static void add(struct list *list, const char *name, enum mp_doctor_verdict verdict,
                const char *advice, const char *format, ...)
{
    struct mp_doctor_finding *finding = &list->findings[list->count++];
    va_list values;

    mp_assert(list->count <= MP_DOCTOR_FINDINGS_MAX);
    finding->name = name;
    finding->verdict = verdict;
    va_start(values, format);
    vsnprintf(finding->text, sizeof(finding->text), format, values);
    va_end(values);
    snprintf(finding->advice, sizeof(finding->advice), "%s", advice != NULL ? advice : "");
}

static void judge_processor(const struct mp_doctor_facts *f, struct list *list)
{
    const bool vectors = strcmp(f->kernels, "ref") != 0;

    add(list, "processor", vectors ? MP_DOCTOR_GOOD : MP_DOCTOR_SLOW,
        vectors ? NULL : "use a processor with AVX2 or AVX-512",
        "%u cores that this process may use, kernels %s", f->cores, f->kernels);
    if (f->governor[0] != '\0') {
        const bool slow = strcmp(f->governor, "powersave") == 0;

        add(list, "clock", slow ? MP_DOCTOR_NOTE : MP_DOCTOR_GOOD,
            slow ? "if it stays slow under load: cpupower frequency-set -g performance" : NULL,
            "frequency governor %s", f->governor);
    }
    add(list, "NUMA", f->nodes > 1 ? MP_DOCTOR_NOTE : MP_DOCTOR_GOOD,
        f->nodes > 1 ? "experts are kept on one node; moepager env shows how to choose it" : NULL,
        "%u %s", f->nodes, f->nodes == 1 ? "node" : "nodes");
}

static void judge_memory(const struct mp_doctor_facts *f, struct list *list)
{
    const struct mp_memory_room *room = &f->room;
    const bool grouped = room->limit_bytes < room->total_bytes;
    const bool little = room->room_bytes < ROOM_LEAST_BYTES;

    add(list, "memory", little ? MP_DOCTOR_SLOW : MP_DOCTOR_GOOD,
        !little   ? NULL
        : grouped ? "raise the control group's limit (memory.max)"
                  : "end other programs: every GiB holds more experts",
        "a run can take %.1f of %.1f GiB%s", (double)room->room_bytes / GIB,
        (double)room->total_bytes / GIB, grouped ? ", limited by a control group" : "");
    if (f->huge_pages[0] != '\0') {
        const bool never = strcmp(f->huge_pages, "never") == 0;

        add(list, "huge pages", never ? MP_DOCTOR_SLOW : MP_DOCTOR_GOOD,
            never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : NULL,
            "transparent huge pages: %s", f->huge_pages);
    }
    if (f->maps_max > 0) {
        const bool few = f->maps_max < MAPS_LEAST;

        add(list, "mappings", few ? MP_DOCTOR_SLOW : MP_DOCTOR_GOOD,
            few ? "sysctl -w vm.max_map_count=262144, for moepager preload" : NULL,
            "vm.max_map_count %" PRIu64, f->maps_max);
    }
}

static void judge_disk(const struct mp_doctor_facts *f, struct list *list)
{
    const bool slow = f->disk_bytes_per_s < DISK_SLOW;

    add(list, "io_uring", f->uring_error == 0 ? MP_DOCTOR_GOOD : MP_DOCTOR_SLOW,
        f->uring_error == 0 ? NULL
                            : "allow it (kernel.io_uring_disabled=0, the container's seccomp "
                              "profile); until then threads read",
        "%s", f->uring_error == 0 ? "works" : strerror(f->uring_error));
    if (f->disk_bytes_per_s == 0) {
        add(list, "disk", MP_DOCTOR_NOTE, "give --model to measure the disk that it lies on",
            "not measured");
        return;
    }
    add(list, "disk", slow ? MP_DOCTOR_SLOW : MP_DOCTOR_GOOD,
        slow ? "put the model on a faster disk, or give a larger --budget" : NULL,
        "%.2f GiB/s, %s the page cache: %.2f ms for an expert of %.2f MiB",
        f->disk_bytes_per_s / GIB, f->disk_direct ? "past" : "through",
        (double)f->expert_bytes / f->disk_bytes_per_s * 1e3, (double)f->expert_bytes / (1 << 20));
}

static void judge_device(const struct mp_doctor_facts *f, struct list *list)
{
    if (f->devices == 0) {
        add(list, "CUDA", MP_DOCTOR_NOTE, "nothing, unless there is a GPU: then install its driver",
            "no device: %s", f->driver);
        return;
    }
    add(list, "CUDA", MP_DOCTOR_GOOD, NULL, "%u %s", f->devices,
        f->devices == 1 ? "device" : "devices");
    if (f->memlock_bytes < f->room.room_bytes)
        add(list, "memlock", MP_DOCTOR_NOTE,
            "if pinning fails: ulimit -l unlimited, or LimitMEMLOCK=infinity of the service",
            "this process may lock %" PRIu64 " MiB; the driver pins host memory itself",
            f->memlock_bytes >> 20);
}

size_t mp_doctor_judge(const struct mp_doctor_facts *facts,
                       struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX])
{
    struct list list = { findings, 0 };

    judge_processor(facts, &list);
    judge_memory(facts, &list);
    judge_disk(facts, &list);
    judge_device(facts, &list);
    return list.count;
}

const char *mp_doctor_verdict_name(enum mp_doctor_verdict verdict)
{
    static const char *const names[] = { "ok", "note", "slow" };

    return names[verdict];
}
