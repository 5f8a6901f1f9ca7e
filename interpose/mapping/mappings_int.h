#ifndef MP_INTERPOSE_MAPPINGS_INT_H
#define MP_INTERPOSE_MAPPINGS_INT_H

#include <sys/mman.h>
#include <sys/types.h>

#include "interpose/mapping/moves.h"
#include "interpose/mapping/mappings.h"

/* What the files of this folder share. */
#define MP_MAPPING_RANGES_MAX 64

/* A mapping of the program, and what of it is left: ranges of the file, ascending. */
struct mp_mapped_file {
    struct mp_mapping map;
    struct {
        uint64_t begin, end;
    } left[MP_MAPPING_RANGES_MAX];
    uint32_t left_count; /* 0: not mapped */
};

/* What a descriptor of ours refers to. A program may close descriptors that it does not know, and
 * then opens something else by the same number. */
struct mp_descriptor {
    dev_t device;
    ino_t inode;
};

/* The pages of one piece of a unit. */
struct mp_mapped_piece {
    uint64_t begin, end;  /* in the file, whole pages */
    uint64_t slot_offset; /* of `begin`, in the memory file; while `mapped` */
    uint32_t unit, k, file;
    bool mapped;                 /* its slot's pages are mapped here */
    uint64_t own_begin, own_end; /* while `mapped`: but for edges that a neighbour took */
};

struct mp_mappings {
    struct mp_mutex lock;
    struct mp_host host;
    struct mp_files *files;
    uint32_t units, file_count;
    void *arrays;                             /* the block of the arrays below */
    struct mp_mapped_file *mapped;            // (files)
    struct mp_mapped_piece *pieces;           // (piece_count): by file and place
    uint32_t (*piece_at)[MP_UNIT_PIECES_MAX]; // (units): in pieces; UINT32_MAX: there is none
    uint8_t *is_mapped;                       // (units): bits of pieces, skipped ones too
    uint32_t piece_count;
    struct mp_descriptor *owned; // (files)
    struct mp_descriptor slots, pagemap;
    int slot_fd; /* -1: no unit has been mapped yet */
    struct mp_moves moves;
    int pagemap_fd; /* -1: mappings that may be written to are not paged */
    char *spare;
    bool refused;       /* the kernel has no more mappings, or had none a moment ago */
    uint32_t units_max; /* mapped at a time; UINT32_MAX until it refused for the first time */
    uint64_t wanted;    /* units that were to be mapped */
    uint64_t asked;     /* of these when it was last asked how many mappings are left; 0: never */
    bool off;           /* after fork() */
    bool private_too;   /* see mp_mappings_allow_private() */
    struct mp_mappings_counts counts;
};

/* Is [begin, end) of the file, whole, still the program's mapping? */
bool mp_mapped_file_has(const struct mp_mapped_file *file, uint64_t begin, uint64_t end);

/* May the program write to it, for itself? Then what it has written stays. */
static inline bool mp_mapping_is_private(const struct mp_mapping *map)
{
    return (map->prot & PROT_WRITE) != 0;
}

/* written.c. Without a page map, mappings that the program may write to are not paged. */
void mp_mappings_open_pagemap(struct mp_mappings *mappings);

/* Has the program written to a page of [begin, end) of the file? Such a page is no longer the
 * file's, nor the slot's, but its own. What cannot be found out counts as written. */
bool mp_mappings_was_written(const struct mp_mappings *mappings, const struct mp_mapped_file *file,
                             uint64_t begin, uint64_t end);

struct mp_descriptor mp_descriptor_of(int fd);

/* Is it known to be ours? Is it known to be no longer? */
bool mp_descriptor_is_ours(const struct mp_descriptor *owned, int fd);
bool mp_descriptor_is_lost(const struct mp_descriptor *owned, int fd);

/* mappings_room.c, with `lock`. Mappings that are kept back, so that the file can be mapped back
 * when the kernel has no more to give. give_spare: false: there are none. */
void mp_mappings_take_spare(struct mp_mappings *mappings);
bool mp_mappings_give_spare(struct mp_mappings *mappings);
/* Something could not be mapped, as errno says. */
void mp_mappings_note_refusal(struct mp_mappings *mappings);
/* The kernel has refused one, and might refuse the program's next. */
void mp_mappings_give_way(struct mp_mappings *mappings);
/* Is there room for one more? */
bool mp_mappings_has_room(struct mp_mappings *mappings, uint32_t unit);

bool mp_mappings_unmap_unit_locked(struct mp_mappings *mappings, uint32_t unit);
void mp_mappings_unmap_units_locked(struct mp_mappings *mappings);

#endif
