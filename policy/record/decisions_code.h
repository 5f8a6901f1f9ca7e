#ifndef MP_DECISIONS_CODE_H
#define MP_DECISIONS_CODE_H

#include <stdio.h>

#include "policy/policy.h"

/*
 * The binary part of a decision log, described once for both directions: the same function writes
 * or reads a value, so the two cannot disagree. docs/trace-format.md defines the bytes.
 *
 * Input is not trusted: a number beyond its limit, or a value that is not allowed as a policy's
 * argument, sets `problem`; after that nothing more is read and values are zero or NULL. Arrays
 * that were read are valid until mp_code_recycle().
 *
 * Writing allocates nothing; errors stay in the FILE.
 */
enum mp_call {
    MP_CALL_END,
    MP_CALL_ROUTE,
    MP_CALL_ASSIGN,
    MP_CALL_PREDICT_OBSERVE,
    MP_CALL_PREDICT,
    MP_CALL_PREFETCH_OBSERVE,
    MP_CALL_CHOOSE,
    MP_CALL_ADMIT,
    MP_CALL_INSERT,
    MP_CALL_REMOVE,
    MP_CALL_ACCESS,
    MP_CALL_PICK,
    MP_CALL_SCORES,
    MP_CALL_REPLACE,
    MP_CALL_QUOTA,
    MP_CALL_FIRST,
    MP_CALL_PARTITION_OBSERVE,
    MP_CALL_REVISE,
    MP_CALL_PARTITION_PREDICTED,
    MP_CALL_PARTITION_ROUTED,
    MP_CALL_RETAINED,
    MP_CALL_COUNT
};

/* "evict.pick" */
const char *mp_call_name(enum mp_call call);

/* A call and its arguments. Which members are used depends on the call. */
struct mp_call_args {
    enum mp_call call;
    union {
        struct mp_route_facts route;
        struct mp_assign_facts assign;
        struct mp_predict_facts predict;
        struct mp_prefetch_facts prefetch;
        struct mp_evict_query query;
    };
    struct mp_assign_facts current; /* of prefetch */
    uint32_t layer, tokens, k, id, needed, hits, max;
    uint32_t slots; /* of partition calls with a shape: the fields that a changed budget changes */
    uint64_t expert_bytes; /* as well */
    uint64_t now;
    bool idle;
    const uint32_t *chosen; // (tokens, k)
    const float *scores;    // (tokens, experts)
    const uint32_t *quota;  // (layers)
};

/* Its result: a number, a list, values. */
struct mp_call_result {
    uint32_t number;
    const uint32_t *list;
    const float *values;
    size_t list_count, value_count;
};

/* Limits of a shape that is read. */
#define MP_CODE_SLOTS_MAX (1u << 24)
#define MP_CODE_EXPERT_BYTES_MAX (UINT64_C(1) << 40)

#define MP_CODE_BLOCKS 32
#define MP_CODE_RECENT 2

struct mp_code {
    FILE *file;
    bool reading;
    uint64_t left;       /* remaining bytes to read */
    const char *problem; /* static, or NULL */
    bool no_memory;      /* the problem is lack of memory */
    struct mp_shape shape;

    struct mp_code_costs {
        bool known;
        struct mp_costs costs;
    } fact_costs, shape_costs; /* the latest: of facts, and behind shape.costs */
    void *block;               /* evictable, resident, and matrices when writing */
    uint8_t *evictable;        // (ids): the latest
    uint8_t *resident;         // (ids): only when reading, from inserts and removes
    struct mp_code_matrix {
        float *values;
        size_t count, room;
    } recent[MP_CODE_RECENT]; /* matrices of scores: repeated ones are referenced, not copied */
    unsigned next_recent;

    struct mp_code_block {
        void *data;
        size_t room;
    } blocks[MP_CODE_BLOCKS]; /* of arrays that were read */
    unsigned used_blocks, kept_blocks;
};

/* `bytes`: rest of the file, when reading. If shape->costs is not NULL there are costs; when
 * reading, the pointer is not used: costs are read into shape_costs. */
enum mp_status mp_code_init(struct mp_code *code, FILE *file, bool reading, uint64_t bytes,
                            const struct mp_shape *shape) MP_MUST_CHECK;
/* Safe on a zeroed one. */
void mp_code_fini(struct mp_code *code);

/* Release all arrays that were read. */
void mp_code_recycle(struct mp_code *code);

/* Room for `count` values of `bytes` each until the next recycle; NULL sets `problem`. */
void *mp_code_room(struct mp_code *code, size_t count, size_t bytes);

/* Set `problem` to a static text, unless it is set already. */
void mp_code_problem(struct mp_code *code, const char *problem);

/* Numbers have seven bits per byte, the lowest first; all bytes but the last have the highest bit
 * set. A number outside min..max is a problem. */
void mp_code_u64(struct mp_code *code, uint64_t *value, uint64_t max);
void mp_code_u32(struct mp_code *code, uint32_t *value, uint32_t min, uint32_t max);
void mp_code_bool(struct mp_code *code, bool *value);

/* Arrays: written from *array, or read into memory of the codec, to which *array is then set. */
void mp_code_u32s(struct mp_code *code, const uint32_t **array, size_t count, uint32_t min,
                  uint32_t max);
void mp_code_floats(struct mp_code *code, const float **array, size_t count, bool finite);
/* One bit for each flag. */
void mp_code_flags(struct mp_code *code, const uint8_t **array, size_t count);
/* Scores: 0 and the values, or 1 + the index of an equal matrix among the recent ones. */
void mp_code_matrix(struct mp_code *code, const float **array, size_t count, bool finite);

/* What shape points to: its present costs, if any, and the calibration; when reading, the latter
 * goes into *calibration. */
void mp_code_shape_costs(struct mp_code *code);
void mp_code_calibration(struct mp_code *code, struct mp_calibration *calibration);

/* The call and its arguments; MP_CALL_END with the number of calls in args->now. */
void mp_code_call(struct mp_code *code, struct mp_call_args *args);
void mp_code_result(struct mp_code *code, struct mp_call_result *result);

#endif
