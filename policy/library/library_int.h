/*
 * What the files of libmoepager share.
 */
#ifndef MP_LIBRARY_INT_H
#define MP_LIBRARY_INT_H

#include "policy/moepager.h"
#include "policy/pager/pager.h"

struct moepager {
    struct mp_files *files;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_policies policies;
    struct mp_pager *pager;
    struct mp_counters counters;
    uint32_t layers, experts, slices;
    void *block;           /* both arrays */
    struct mp_need *needs; // (experts)
    uint8_t *handed;       // (experts * slices): of the open layer: 1 handed out, 2 given back
    uint32_t need_count, done_count; /* slices */
    bool open;
    uint64_t budget_bytes;
    int event_fd; /* -1: nobody has asked for it */
};

/* First thing in every call that can fail: the sink of the log, once, and no error yet. */
void moepager_enter(void);

#endif
