#ifndef MP_INTERPOSE_SHOWN_INT_H
#define MP_INTERPOSE_SHOWN_INT_H

#include <sys/mman.h>
#include <sys/types.h>

#include "interpose/window/moves.h"
#include "interpose/window/shown.h"

/* What shown.c, views.c and owned.c share. */
#define MP_SHOWN_RANGES_MAX 64

/* A mapping of the program, and what of it is left: ranges of the file, ascending. */
struct mp_shown_view {
    struct mp_view view;
    struct {
        uint64_t begin, end;
    } left[MP_SHOWN_RANGES_MAX];
    uint32_t left_count; /* 0: not mapped */
};

/* What a descriptor of ours has open. A program may close descriptors that it does not know, and
 * then opens something else by the same number. */
struct mp_shown_owned {
    dev_t device;
    ino_t inode;
};

/* The pages of one piece of a unit. */
struct mp_shown_piece {
    uint64_t begin, end;  /* in the file, whole pages */
    uint64_t slot_offset; /* of `begin`, in the memory file; while `mapped` */
    uint32_t unit, k, file;
    bool mapped;                 /* its slot's pages are mapped here */
    uint64_t own_begin, own_end; /* while `mapped`: but for edges that a neighbour took */
};

struct mp_shown {
    struct mp_mutex lock;
    struct mp_host host;
    struct mp_files *files;
    uint32_t units, file_count;
    struct mp_shown_view *views;              // (files)
    struct mp_shown_piece *pieces;            // (piece_count): by file and place
    uint32_t (*piece_at)[MP_UNIT_PIECES_MAX]; // (units): in pieces; UINT32_MAX: there is none
    bool *shown;                              // (units)
    uint32_t piece_count;
    struct mp_shown_owned *owned; // (files)
    struct mp_shown_owned slots, pagemap;
    int slot_fd; /* -1: nothing has been shown yet */
    struct mp_moves moves;
    int pagemap_fd; /* -1: mappings that may be written to are not paged */
    char *spare;
    bool off;         /* after fork() */
    bool private_too; /* see mp_shown_allow_private() */
    struct mp_shown_counts counts;
};

/* Is [begin, end) of the file, whole, still the program's mapping? */
bool mp_shown_view_has(const struct mp_shown_view *view, uint64_t begin, uint64_t end);

/* May the program write to it, for itself? Then what it has written stays. */
static inline bool mp_shown_is_private(const struct mp_view *view)
{
    return (view->prot & PROT_WRITE) != 0;
}

struct mp_shown_owned mp_shown_own(int fd);

/* Is it known to be ours? Is it known to be no longer? */
bool mp_shown_owns(const struct mp_shown_owned *owned, int fd);
bool mp_shown_lost(const struct mp_shown_owned *owned, int fd);

bool mp_shown_hide_locked(struct mp_shown *shown, uint32_t unit);
void mp_shown_hide_all_locked(struct mp_shown *shown);

#endif
