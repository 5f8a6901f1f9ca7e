#ifndef MP_INTERPOSE_SHOWN_H
#define MP_INTERPOSE_SHOWN_H

#include "interpose/entry.h"
#include "interpose/model/experts.h"
#include "vmm/base/lock.h"

/*
 * What is mapped at the addresses where the program has mapped a model's files.
 *
 * At first, and wherever nothing better is known, the program's own mapping of the file. A resident
 * expert is shown: the pages of its slot, parts of a memory file, are mapped over the file's. To
 * hide it the file is mapped back. Both replace one mapping by another in one system call, and both
 * hold the same bytes, so whoever reads there at any time reads the file.
 *
 *     a page of a slot is mapped nowhere       while its unit is not shown
 *     a unit's pages are the file's            while it is not shown, but for edges
 *
 * A page that two experts share, because expert sizes are no multiples of a page, is in the slots
 * of both, whole; the one that is shown last has it, and the other when that one is hidden.
 *
 * What the program unmaps, moves or protects is left for good: mp_shown_leave().
 *
 * Thread safety: any thread. Locks: `lock`, inside of nothing.
 */
struct mp_shown;

/* A mapping that the program made. */
struct mp_view {
    char *at;
    size_t bytes;
    uint64_t offset_bytes; /* in the file */
    uint32_t file;
    int prot, flags;
};

enum mp_status mp_shown_create(const struct mp_host *host, const struct mp_experts *experts,
                               struct mp_shown **shown_p) MP_MUST_CHECK;

/* Nothing is shown any more. NULL is allowed. */
void mp_shown_destroy(struct mp_shown *shown);

/*
 * The program has mapped one of the files. Of several mappings of a file the latest is paged.
 * False: this one cannot be.
 *
 * A mapping that the program may write to, for itself, keeps what was written: a unit with such a
 * page is neither shown nor hidden any more.
 */
bool mp_shown_add(struct mp_shown *shown, const struct mp_view *view);

/*
 * Show a unit. fds[k] and offsets[k] say where piece k's first page lies. False: it cannot be
 * mapped now, and stays hidden. Pieces that lie in no mapping are skipped.
 */
bool mp_shown_show(struct mp_shown *shown, uint32_t unit, int fd, const uint64_t *offset_bytes);

/* Hide a unit: its slot is about to be given away. No effect if it is not shown. False: the file
 * cannot be mapped back, and the slot must not be filled. */
bool mp_shown_hide(struct mp_shown *shown, uint32_t unit) MP_MUST_CHECK;
void mp_shown_hide_all(struct mp_shown *shown);

/* From now on units are also shown in mappings that the program may write to. Whoever says so knows
 * that nobody writes to an expert at the moment at which it is shown or hidden. */
void mp_shown_allow_private(struct mp_shown *shown);
bool mp_shown_is_shown(struct mp_shown *shown, uint32_t unit);

/* The file's own mapping in [at, at + bytes), and nothing else from now on. True: no mapping is
 * left at all. */
bool mp_shown_leave(struct mp_shown *shown, const void *at, size_t bytes);

/* Is none of the files mapped? */
bool mp_shown_is_empty(struct mp_shown *shown);

/* Is this address in a mapping? */
bool mp_shown_covers(struct mp_shown *shown, const void *at, size_t bytes);

/* Which byte of which file is at this address? False: none. */
bool mp_shown_place(struct mp_shown *shown, const void *at, uint32_t *file_p,
                    uint64_t *offset_bytes_p);

/* Where byte `offset_bytes` of the file is mapped, with how many behind it, for advice that would
 * lose what was written there; NULL: nowhere, or where the program may write. */
char *mp_shown_address(struct mp_shown *shown, uint32_t file, uint64_t offset_bytes,
                       uint64_t bytes);

/*
 * Put memory with the file's bytes over pages that hold no expert, where they are mapped; `memory`
 * is moved there. False: it could not be, and is the caller's still.
 */
bool mp_shown_replace(struct mp_shown *shown, uint32_t file, uint64_t offset_bytes, void *memory,
                      uint64_t bytes);

/* Has the file our descriptors still open? Then what was read by them is the file's. */
bool mp_shown_has_file(struct mp_shown *shown, uint32_t file);

/* Are some of them, or those of slots, somebody else's by now? Then none may be closed. */
bool mp_shown_lost_any(struct mp_shown *shown);

/* fork(): no change may be under way. In the child all that is shown is hidden, and stays so. */
void mp_shown_fork_prepare(struct mp_shown *shown);
void mp_shown_fork_parent(struct mp_shown *shown);
void mp_shown_fork_child(struct mp_shown *shown);

struct mp_shown_counts {
    uint64_t shows, hides, failures;
    uint32_t shown, shown_max;
};
void mp_shown_get_counts(struct mp_shown *shown, struct mp_shown_counts *counts_p);

#endif
