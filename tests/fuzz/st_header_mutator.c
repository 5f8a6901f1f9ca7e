/*
 * Builds a valid header from the seed and breaks one field of it: that reaches the checks behind
 * the JSON parser, which bytes changed at random seldom do. Half of the time the input is changed
 * the ordinary way.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "vmm/format/safetensors.h"
#include "tests/fuzz/fuzz.h"

enum broken {
    BREAK_NOTHING,
    BREAK_LENGTH,
    BREAK_FILE_SIZE,
    BREAK_DTYPE,
    BREAK_SHAPE,
    BREAK_BEGIN,
    BREAK_END,
    BREAK_OFFSETS,
    BREAK_KEY,
    BREAK_NAME,
    BREAK_METADATA,
    BREAK_BEHIND,
    BREAK_COUNT
};

/* Values at the edges of what the format and its readers know. */
static const char *const odd_values[] = {
    "0",
    "-1",
    "1",
    "7",
    "1e3",
    "1.5",
    "-0",
    "0.0",
    "1e400",
    "null",
    "true",
    "\"0\"",
    "[]",
    "{}",
    "2147483648",
    "4294967296",
    "4611686018427387904",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "[1,2]",
    "0x10",
    "",
};

static const char *const odd_dtypes[] = {
    "\"f32\"", "\"Q4_0\"",    "\"\"",      "null", "7",
    "\"F4\"",  "\"F6_E3M2\"", "\"BF16 \"", "[]",   "\"F\\u0033\\u0032\""
};

static const char *const odd_names[] = { "t0",      "\\u00740", "__metadata__", "",
                                         "\\u0000", "a\\nb",    "\xff",         "\xc0\x80",
                                         "\\ud800", "t\\\"0",   "__proto__" };

static const char *const odd_metadata[] = { "[]",           "null",  "{\"a\":1}",
                                            "{\"a\":null}", "\"x\"", "{\"a\":\"b\",\"a\":\"b\"}",
                                            "{\"a\":{}}",   "7",     "{\"a\":\"\\u0000\"}" };

static const char *const odd_tails[] = { " \n\t ", "x", "{}", ",", "}", "]", "[[[[[[[[", "//" };

/* xorshift; the seed decides everything. */
static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

#define PICK(state, list) ((list)[next_random(state) % (sizeof(list) / sizeof((list)[0]))])

struct text {
    char bytes[4096];
    size_t used;
};

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *text, const char *format, ...)
{
    const size_t room = sizeof(text->bytes) - text->used;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(text->bytes + text->used, room, format, args);
    va_end(args);
    text->used += (size_t)length < room ? (size_t)length : room - 1;
}

/* One entry, of a size that fits its shape, unless `broken` says otherwise; returns its end. */
static uint64_t put_tensor(struct text *text, uint32_t *state, unsigned index, uint64_t begin,
                           enum broken broken)
{
    const enum mp_dtype dtype = (enum mp_dtype)(next_random(state) % MP_DTYPE_COUNT);
    const uint32_t dims = next_random(state) % 5, odd_dim = next_random(state) % 8;
    uint64_t elements = 8;
    char dtype_text[32];

    snprintf(dtype_text, sizeof(dtype_text), "\"%s\"", mp_dtype_name(dtype));
    if (broken == BREAK_NAME)
        put(text, "\"%s\":{", PICK(state, odd_names));
    else
        put(text, "\"t%u\":{", index);
    put(text, "\"dtype\":%s,\"shape\":[8",
        broken == BREAK_DTYPE ? PICK(state, odd_dtypes) : dtype_text);
    for (uint32_t i = 0; i < dims; i++) {
        const uint64_t dim = next_random(state) % 4;

        elements *= dim;
        if (broken == BREAK_SHAPE && i == odd_dim % dims)
            put(text, ",%s", PICK(state, odd_values));
        else
            put(text, ",%" PRIu64, dim);
    }
    if (broken == BREAK_SHAPE) {
        for (uint32_t i = 0; i < odd_dim; i++)
            put(text, ",1");
    }
    const uint64_t end =
        begin + elements / mp_dtype_info(dtype)->block_elements * mp_dtype_info(dtype)->block_bytes;

    put(text, "],\"data_offsets\":[");
    if (broken == BREAK_BEGIN)
        put(text, "%s,%" PRIu64, PICK(state, odd_values), end);
    else if (broken == BREAK_END)
        put(text, "%" PRIu64 ",%s", begin, PICK(state, odd_values));
    else if (broken == BREAK_OFFSETS)
        put(text, "%" PRIu64 ",%" PRIu64, begin + next_random(state) % 3 - 1,
            end + next_random(state) % 3 - 1);
    else
        put(text, "%" PRIu64 ",%" PRIu64, begin, end);
    put(text, "]");
    if (broken == BREAK_KEY)
        put(text, ",\"%s\":%s", next_random(state) % 2 ? "dtype" : "extra",
            PICK(state, odd_values));
    put(text, "}");
    return end;
}

static void write_u64(uint8_t *data, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        data[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t odd_number(uint32_t *state, uint64_t value)
{
    static const uint64_t numbers[] = {
        0, 1, 7, 8, 9, 100000000, 100000001, UINT64_MAX, UINT64_MAX - 7, INT64_MAX
    };

    return next_random(state) % 2 ? PICK(state, numbers) : value + next_random(state) % 17 - 8;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    uint32_t state = seed | 1;
    struct text text = { .used = 0 };
    uint64_t end = 0, header_bytes, file_bytes;

    if (next_random(&state) % 2 == 0 || max_bytes < 16)
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    const enum broken broken = (enum broken)(next_random(&state) % BREAK_COUNT);
    const unsigned count = 1 + next_random(&state) % 6, victim = next_random(&state) % count;

    put(&text, "{\"__metadata__\":%s",
        broken == BREAK_METADATA ? PICK(&state, odd_metadata) : "{\"format\":\"pt\"}");
    for (unsigned i = 0; i < count; i++) {
        put(&text, ",");
        end = put_tensor(&text, &state, i, end, i == victim ? broken : BREAK_NOTHING);
    }
    put(&text, "}%s", broken == BREAK_BEHIND ? PICK(&state, odd_tails) : "");
    if (text.used > max_bytes - 16)
        text.used = max_bytes - 16;
    header_bytes = text.used;
    file_bytes = 8 + header_bytes + end;
    write_u64(data, broken == BREAK_FILE_SIZE ? odd_number(&state, file_bytes) : file_bytes);
    write_u64(data + 8, broken == BREAK_LENGTH ? odd_number(&state, header_bytes) : header_bytes);
    memcpy(data + 16, text.bytes, text.used);
    return 16 + text.used;
}
