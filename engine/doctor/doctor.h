#ifndef MP_DOCTOR_H
#define MP_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/clock.h"
#include "vmm/base/status.h"
#include "vmm/io/file.h"
#include "vmm/topo/memory_room.h"
#include "vmm/topo/topology.h"

/*
 * What of this machine is slow or missing, and what to do. Facts are read first, then judged, so
 * that a judgement can be tested for machines that are not at hand. Nothing is changed.
 */
struct mp_doctor_facts {
    const char *kernels; /* the variant that is used */
    struct mp_memory_room room;
    uint64_t memlock_bytes;  /* UINT64_MAX: no limit */
    uint64_t maps_max;       /* 0: not known */
    int uring_error;         /* errno of setting one up; 0: it works */
    char huge_pages[16];     /* "always", "madvise", "never"; empty: not known */
    char governor[32];       /* of processor 0; empty: the kernel shows none */
    unsigned nodes, cores;   /* NUMA nodes, cores that may be used */
    unsigned devices;        /* CUDA devices */
    char driver[256];        /* why there are none */
    double disk_bytes_per_s; /* of the model's largest file; 0: not measured */
    bool disk_direct;        /* past the page cache */
    uint64_t expert_bytes;   /* of the model; 0: none was given */
};

enum mp_doctor_verdict { MP_DOCTOR_GOOD, MP_DOCTOR_NOTE, MP_DOCTOR_SLOW };

struct mp_doctor_finding {
    const char *name;
    enum mp_doctor_verdict verdict;
    char text[320];   /* what is there */
    char advice[200]; /* what to do; empty if nothing */
};

#define MP_DOCTOR_FINDINGS_MAX 12

/* Read what needs no model. `root`: "" for this machine, or a folder with copies of /proc and /sys;
 * the processor, io_uring, limits and the driver are always this process's own. */
void mp_doctor_read(const char *root, const struct mp_topology *topology,
                    struct mp_doctor_facts *facts);

/* The speed of the largest of these files: blocks all over it, one at a time, for half a second at
 * most. MP_ERR_IO as of mp_files_read(), MP_ERR_NO_MEMORY. */
enum mp_status mp_doctor_read_disk(struct mp_files *files, struct mp_clock *clock,
                                   struct mp_doctor_facts *facts) MP_MUST_CHECK;

/* Returns how many findings there are, in a fixed order. */
size_t mp_doctor_judge(const struct mp_doctor_facts *facts,
                       struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX]);

/* "ok", "note", "slow". */
const char *mp_doctor_verdict_name(enum mp_doctor_verdict verdict);

#endif
