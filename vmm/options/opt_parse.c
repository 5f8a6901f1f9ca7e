/* Values: text to field and back. Own number parsers, because strtod() follows the host's locale.
 */
#include "vmm/options/opt.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/output/json_out.h"

#define PPM 1000000u

static bool parse_bool(const char *s, uint64_t *value_p)
{
    static const char *const words[] = { "0",   "1",     "off",  "on", "no",
                                         "yes", "false", "true", "n",  "y" };

    for (size_t i = 0; i < MP_ARRAY_LEN(words); i++) {
        if (strcasecmp(s, words[i]) == 0) {
            *value_p = i & 1;
            return true;
        }
    }
    return false;
}

/* Decimal digits up to the first other character; at least one. No sign, no space. */
static bool parse_digits(const char **s, uint64_t *value_p)
{
    uint64_t value = 0;

    mp_assert(s != NULL && *s != NULL);
    if (**s < '0' || **s > '9')
        return false;
    for (; **s >= '0' && **s <= '9'; (*s)++) {
        if (!mp_mul_u64(value, 10, &value) || !mp_add_u64(value, (uint64_t)(**s - '0'), &value))
            return false;
    }
    *value_p = value;
    return true;
}

/* "12" or "12.5": a whole part and millionths, at most six digits after the point. */
static bool parse_decimal(const char **s, uint64_t *whole_p, uint64_t *ppm_p)
{
    uint64_t ppm = 0;

    if (!parse_digits(s, whole_p))
        return false;
    if (**s == '.') {
        uint64_t unit = PPM;

        (*s)++;
        if (**s < '0' || **s > '9')
            return false;
        for (; **s >= '0' && **s <= '9'; (*s)++) {
            unit /= 10;
            if (unit == 0)
                return false;
            ppm += unit * (uint64_t)(**s - '0');
        }
    }
    *ppm_p = ppm;
    return true;
}

/* The power of two that a suffix stands for, 0 for none; false if it is not a suffix. */
static bool parse_suffix(const char *s, unsigned *shift_p)
{
    static const char letters[] = "KMGT";
    const char *at;

    if (*s == '\0' || strcasecmp(s, "B") == 0) {
        *shift_p = 0;
        return true;
    }
    at = strchr(letters, *s & ~0x20);
    if (at == NULL || *at == '\0')
        return false;
    if (s[1] != '\0' && strcasecmp(s + 1, "B") != 0 && strcasecmp(s + 1, "iB") != 0)
        return false;
    *shift_p = 10 * (unsigned)(at - letters + 1);
    return true;
}

static bool parse_bytes(const char *s, uint64_t *value_p)
{
    uint64_t whole, ppm, value;
    unsigned shift;

    if (!parse_decimal(&s, &whole, &ppm) || !parse_suffix(s, &shift))
        return false;
    if (shift == 0 && ppm != 0)
        return false;
    /* ppm < 2^20 and shift <= 40: the fraction cannot overflow. */
    if (!mp_mul_u64(whole, UINT64_C(1) << shift, &value) ||
        !mp_add_u64(value, (ppm << shift) / PPM, &value))
        return false;
    *value_p = value;
    return true;
}

static bool parse_share(const struct mp_opt *opt, const char *s, struct mp_share *share)
{
    struct mp_share value = { .kind = MP_SHARE_BYTES };
    const size_t length = strlen(s);

    mp_assert(opt->min <= opt->max);
    if (strcasecmp(s, "all") == 0) {
        value.kind = MP_SHARE_ALL;
    } else if (strcasecmp(s, "auto") == 0) {
        value.kind = MP_SHARE_AUTO;
    } else if (length > 0 && s[length - 1] == '%') {
        uint64_t whole, ppm;

        if (!parse_decimal(&s, &whole, &ppm) || strcmp(s, "%") != 0)
            return false;
        if (whole > 100 || (whole == 100 && ppm != 0) || ppm % 100 != 0)
            return false;
        value.kind = MP_SHARE_PPM;
        value.amount = whole * (PPM / 100) + ppm / 100;
    } else if (!parse_bytes(s, &value.amount) || value.amount < opt->min ||
               value.amount > opt->max) {
        return false;
    }
    *share = value;
    return true;
}

/* At most 15 significant digits, so that the mantissa is exact, and one scaling by an exact power
 * of ten: hence the result is correctly rounded. */
static bool parse_f64(const char *s, double *value_p)
{
    const bool negative = *s == '-';
    uint64_t mantissa = 0, exponent = 0;
    int scale = 0, digits = 0;
    bool point = false, any = false, negative_exponent = false;
    double power = 1, value;

    for (s += negative; (*s >= '0' && *s <= '9') || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = true;
            continue;
        }
        any = true;
        mantissa = mantissa * 10 + (uint64_t)(*s - '0');
        digits += mantissa > 0;
        scale -= point;
        if (digits > 15 || scale < -22)
            return false;
    }
    if (!any || s[-1] == '.')
        return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        negative_exponent = *s == '-';
        s += *s == '-' || *s == '+';
        if (!parse_digits(&s, &exponent) || exponent > 44)
            return false;
        scale += negative_exponent ? -(int)exponent : (int)exponent;
    }
    if (*s != '\0' || scale < -22 || scale > 22)
        return false;
    for (int i = 0; i < (scale < 0 ? -scale : scale); i++)
        power *= 10;
    value = scale < 0 ? (double)mantissa / power : (double)mantissa * power;
    mp_assert(digits <= 15);
    *value_p = negative ? -value : value;
    return true;
}

static bool parse_choice(const char *const *choices, const char *s, uint64_t *value_p)
{
    mp_assert(choices != NULL);
    for (uint64_t i = 0; choices[i] != NULL; i++) {
        if (strcmp(choices[i], s) == 0) {
            *value_p = i;
            return true;
        }
    }
    return false;
}

static bool parse_string(const struct mp_opt *opt, const char *s, char *field)
{
    const size_t length = strlen(s);

    mp_assert(opt->max > 0);
    if (length >= opt->max)
        return false;
    for (const char *at = s; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return false;
    }
    memmove(field, s, length + 1);
    return true;
}

static bool parse_u64(const struct mp_opt *opt, const char *s, uint64_t *value_p)
{
    uint64_t value;
    bool ok;

    mp_assert(opt->min <= opt->max || opt->kind == MP_OPT_BOOL || opt->kind == MP_OPT_CHOICE);
    if (opt->kind == MP_OPT_BOOL)
        return parse_bool(s, value_p);
    if (opt->kind == MP_OPT_CHOICE)
        return parse_choice(opt->choices, s, value_p);
    if (opt->kind == MP_OPT_BYTES)
        ok = parse_bytes(s, &value);
    else
        ok = parse_digits(&s, &value) && *s == '\0';
    if (!ok || value < opt->min || value > opt->max)
        return false;
    *value_p = value;
    return true;
}

bool mp_opt_parse(const struct mp_opt *opt, const char *s, void *field)
{
    double number;

    mp_assert(s != NULL && field != NULL);
    switch (opt->kind) {
    case MP_OPT_BOOL:
    case MP_OPT_CHOICE:
    case MP_OPT_U64:
    case MP_OPT_MS:
    case MP_OPT_BYTES: return parse_u64(opt, s, field);
    case MP_OPT_F64:
        if (!parse_f64(s, &number) || !(number >= opt->f64_min && number <= opt->f64_max))
            return false;
        *(double *)field = number;
        return true;
    case MP_OPT_STRING: return parse_string(opt, s, field);
    case MP_OPT_SHARE: return parse_share(opt, s, field);
    }
    mp_unreachable();
}

const char *mp_opt_format_bytes(uint64_t bytes, char out[32])
{
    static const char letters[] = "KMGT";
    unsigned power = 0;

    while (power < 4 && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        power++;
    }
    mp_assert(power <= 4);
    if (power == 0)
        snprintf(out, 32, "%" PRIu64, bytes);
    else
        snprintf(out, 32, "%" PRIu64 "%ciB", bytes, letters[power - 1]);
    return out;
}

static void format_share(const struct mp_share *share, char *out)
{
    char percent[16];
    size_t length;

    switch (share->kind) {
    case MP_SHARE_ALL: snprintf(out, MP_OPT_TEXT_BYTES, "all"); return;
    case MP_SHARE_AUTO: snprintf(out, MP_OPT_TEXT_BYTES, "auto"); return;
    case MP_SHARE_BYTES: mp_opt_format_bytes(share->amount, out); return;
    case MP_SHARE_PPM: break;
    }
    mp_assert(share->amount <= PPM);
    length = (size_t)snprintf(percent, sizeof(percent), "%u.%04u",
                              (unsigned)(share->amount / (PPM / 100)),
                              (unsigned)(share->amount % (PPM / 100)));
    while (percent[length - 1] == '0')
        length--;
    if (percent[length - 1] == '.')
        length--;
    snprintf(out, MP_OPT_TEXT_BYTES, "%.*s%%", (int)length, percent);
}

const char *mp_opt_format(const struct mp_opt *opt, const void *field, char out[MP_OPT_TEXT_BYTES])
{
    mp_assert(field != NULL);
    switch (opt->kind) {
    case MP_OPT_BOOL:
    case MP_OPT_U64:
    case MP_OPT_MS:
        snprintf(out, MP_OPT_TEXT_BYTES, "%" PRIu64, *(const uint64_t *)field);
        return out;
    case MP_OPT_BYTES: return mp_opt_format_bytes(*(const uint64_t *)field, out);
    case MP_OPT_CHOICE:
        snprintf(out, MP_OPT_TEXT_BYTES, "%s", opt->choices[*(const uint64_t *)field]);
        return out;
    case MP_OPT_F64: return mp_format_f64(*(const double *)field, out);
    case MP_OPT_STRING: snprintf(out, MP_OPT_TEXT_BYTES, "%s", (const char *)field); return out;
    case MP_OPT_SHARE: format_share(field, out); return out;
    }
    mp_unreachable();
}

static void describe_choices(const struct mp_opt *opt, char *out)
{
    size_t used = (size_t)snprintf(out, MP_OPT_TEXT_BYTES, "one of");

    mp_assert(opt->choices != NULL && opt->choices[0] != NULL);
    for (size_t i = 0; opt->choices[i] != NULL && used < MP_OPT_TEXT_BYTES; i++)
        used += (size_t)snprintf(out + used, MP_OPT_TEXT_BYTES - used, "%s %s", i > 0 ? "," : "",
                                 opt->choices[i]);
}

const char *mp_opt_describe(const struct mp_opt *opt, char out[MP_OPT_TEXT_BYTES])
{
    char min[MP_F64_BYTES], max[MP_F64_BYTES];
    static const char size[] = "a size such as 4096, 64K, 1.5M or 2GiB (powers of 1024)";

    switch (opt->kind) {
    case MP_OPT_BOOL:
        snprintf(out, MP_OPT_TEXT_BYTES, "1, on, yes or true; 0, off, no or false");
        break;
    case MP_OPT_U64:
    case MP_OPT_MS:
        snprintf(out, MP_OPT_TEXT_BYTES, "a whole number%s from %" PRIu64 " to %" PRIu64,
                 opt->kind == MP_OPT_MS ? " of milliseconds" : "", opt->min, opt->max);
        break;
    case MP_OPT_BYTES:
        snprintf(out, MP_OPT_TEXT_BYTES, "%s, from %s to %s", size,
                 mp_opt_format_bytes(opt->min, min), mp_opt_format_bytes(opt->max, max));
        break;
    case MP_OPT_CHOICE: describe_choices(opt, out); break;
    case MP_OPT_F64:
        snprintf(out, MP_OPT_TEXT_BYTES,
                 "a number such as 0.25 or 1e-3 of at most 15 digits, from %s to %s",
                 mp_format_f64(opt->f64_min, min), mp_format_f64(opt->f64_max, max));
        break;
    case MP_OPT_STRING:
        snprintf(out, MP_OPT_TEXT_BYTES, "text of at most %" PRIu64 " bytes, no control characters",
                 opt->max - 1);
        break;
    case MP_OPT_SHARE:
        snprintf(out, MP_OPT_TEXT_BYTES, "%s, a percentage such as 25%%, all, or auto", size);
        break;
    }
    return out;
}

uint64_t mp_share_resolve(const struct mp_share *share, uint64_t whole_bytes, uint64_t auto_bytes)
{
    mp_assert(share->kind != MP_SHARE_PPM || share->amount <= PPM);
    switch (share->kind) {
    case MP_SHARE_BYTES: return share->amount;
    case MP_SHARE_PPM:
        /* In two parts: the product of the whole may not fit. */
        return whole_bytes / PPM * share->amount + whole_bytes % PPM * share->amount / PPM;
    case MP_SHARE_ALL: return whole_bytes;
    case MP_SHARE_AUTO: return auto_bytes;
    }
    mp_unreachable();
}

bool mp_share_seems_percent(const struct mp_share *share)
{
    return share->kind == MP_SHARE_BYTES && share->amount > 0 && share->amount <= 100;
}
