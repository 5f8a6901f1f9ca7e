#ifndef MP_INTERPOSE_MAPPINGS_H
#define MP_INTERPOSE_MAPPINGS_H

#include "interpose/entry.h"
#include "interpose/model/experts.h"
#include "vmm/base/lock.h"

/*
 * What is mapped at the addresses where the program has mapped a model's files.
 *
 * At first the program's own mapping of the file. To map a unit, an expert that is resident, is to
 * map the pages of its slot, parts of a memory file, over the file's. To unmap it is to map the
 * file back. Both replace one mapping by another in one system call, and both hold the same bytes,
 * so whoever reads there at any time reads the file.
 *
 *     a page of a slot is mapped nowhere       while its unit is not mapped
 *     a unit's pages are the file's            while it is not mapped, but for edges
 *
 * A page that two experts share, because expert sizes are no multiples of a page, is in the slots
 * of both, whole. The unit that is mapped last has it, and the other once that one is unmapped.
 *
 * What the program unmaps, moves or protects is left for good: mp_mappings_leave().
 *
 * A mapped piece is a mapping for the kernel, and the file behind it may be another. When the
 * kernel refuses one (vm.max_map_count), to us or to the program, or has few left, all units are
 * unmapped, because the program needs mappings as well, and from then on no more are mapped at a
 * time than leave some to it.
 *
 * Thread safety: any thread. Locks: `lock`, inside of nothing.
 */
struct mp_mappings;

/* A mapping that the program made. */
struct mp_mapping {
    char *at;
    size_t bytes;
    uint64_t offset_bytes; /* in the file */
    uint32_t file;
    int prot, flags;
};

enum mp_status mp_mappings_create(const struct mp_host *host, const struct mp_experts *experts,
                                  struct mp_mappings **mappings_p) MP_MUST_CHECK;

/* No unit is mapped any more. NULL is allowed. */
void mp_mappings_destroy(struct mp_mappings *mappings);

/*
 * The program has mapped one of the files, by its descriptor `fd`. Of several mappings of a file
 * the latest is paged. False: this one cannot be.
 *
 * A mapping that the program may write to, for itself, keeps what was written: a unit with such a
 * page is neither mapped nor unmapped any more.
 */
bool mp_mappings_add(struct mp_mappings *mappings, const struct mp_mapping *map, int fd);

/*
 * Map pieces of a unit, those of the bits in `pieces` that are not mapped yet. Piece k's first page
 * lies at offset_bytes[k] of the memory file `fd`. False: they cannot be mapped now, and none of
 * the unit is mapped any more. Pieces that lie in no mapping are skipped.
 */
bool mp_mappings_map_unit(struct mp_mappings *mappings, uint32_t unit, uint32_t pieces, int fd,
                          const uint64_t *offset_bytes);

/* Unmap a unit: its slot is about to be given away. No effect if it is not mapped. False: the file
 * cannot be mapped back, and the slot must not be filled. */
bool mp_mappings_unmap_unit(struct mp_mappings *mappings, uint32_t unit) MP_MUST_CHECK;
void mp_mappings_unmap_units(struct mp_mappings *mappings);

/* From now on units are also mapped where the program may write. Whoever calls this knows that
 * nobody writes to an expert at the moment at which it is mapped or unmapped. */
void mp_mappings_allow_private(struct mp_mappings *mappings);
/* Bits of its pieces that are mapped, or were skipped. */
uint32_t mp_mappings_has_unit(struct mp_mappings *mappings, uint32_t unit);

/* The file's own mapping in [at, at + bytes), and nothing else from now on. True: no mapping is
 * left at all. */
bool mp_mappings_leave(struct mp_mappings *mappings, const void *at, size_t bytes);

/* Is none of the files mapped? */
bool mp_mappings_is_empty(struct mp_mappings *mappings);

/* The first part of [at, at + bytes) that is in a mapping. False: there is none. */
bool mp_mappings_find_part(struct mp_mappings *mappings, const void *at, size_t bytes,
                           struct mp_paged_part *part_p);

/* Which byte of which file is at this address? False: none. */
bool mp_mappings_locate(struct mp_mappings *mappings, const void *at, uint32_t *file_p,
                        uint64_t *offset_bytes_p);

/* Where byte `offset_bytes` of the file is mapped, with how many behind it, for advice that would
 * lose what was written there; NULL: nowhere, or where the program may write. */
char *mp_mappings_address(struct mp_mappings *mappings, uint32_t file, uint64_t offset_bytes,
                          uint64_t bytes);

/*
 * Put memory with the file's bytes over pages that hold no expert, where they are mapped; `memory`
 * is moved there. False: it could not be, and is the caller's still.
 */
bool mp_mappings_replace(struct mp_mappings *mappings, uint32_t file, uint64_t offset_bytes,
                         void *memory, uint64_t bytes);

/* Has the file our descriptors still open? Then what was read by them is the file's. */
bool mp_mappings_own_file(struct mp_mappings *mappings, uint32_t file);

/* Are some of them, or those of slots, somebody else's by now? Then none may be closed. */
bool mp_mappings_lost_descriptor(struct mp_mappings *mappings);

/* fork(): no change may be under way. In the child all units are unmapped, and stay so. */
void mp_mappings_fork_prepare(struct mp_mappings *mappings);
void mp_mappings_fork_parent(struct mp_mappings *mappings);
void mp_mappings_fork_child(struct mp_mappings *mappings);

/* The kernel has refused the program a mapping: unmap all units. False: there was nothing to give.
 */
bool mp_mappings_make_way(struct mp_mappings *mappings);

/* Do that too where few are left that the program could still have, so that those are enough which
 * it asks for without being seen. To be called now and then; it lists mappings if there are many.
 */
void mp_mappings_keep_room(struct mp_mappings *mappings);

struct mp_mappings_counts {
    uint64_t maps, unmaps, failures;
    uint32_t mapped, mapped_max;
};
void mp_mappings_get_counts(struct mp_mappings *mappings, struct mp_mappings_counts *counts_p);

#endif
