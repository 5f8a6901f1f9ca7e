/*
 * The patterns that cut text into words, as published files spell them and as PCRE2 is given them.
 * No text is cut here.
 */
#include "engine/text/tokenizer_impl.h"

#include <string.h>

/*
 * White_Space of Unicode, which the reference means by \s. PCRE2's own \s also has U+180E, so the
 * patterns below spell it out.
 */
#define WS                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"

/* The endings that most patterns share. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS_PUBLISHED "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BLANKS "|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define TAIL_PUBLISHED " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" BLANKS_PUBLISHED
#define TAIL " ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*" BLANKS
#define SLASH_TAIL_PUBLISHED " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" BLANKS_PUBLISHED
#define SLASH_TAIL " ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*" BLANKS

/* Words by the case of their letters: capitals, then small ones, and the other way round. */
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ending) LEAD UPPER "*" LOWER "+" ending "|" LEAD UPPER "+" LOWER "*" ending

/* The script Han, by ranges: PCRE2 means more than the script by \p{Han}. */
#define HAN                                                                                \
    "[\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}"         \
    "\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}"         \
    "\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}\\x{16fe3}\\x{16ff0}\\x{16ff1}"       \
    "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}" \
    "\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}" \
    "\\x{31350}-\\x{323af}]"
#define NOT_HAN(class) "(?:(?!" HAN ")" class ")"
#define KIMI_UPPER_PUBLISHED "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER_PUBLISHED "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"

/* The letters of DeepSeek-LLM: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Deseret, ...
 */
#define DEEPSEEK_LETTERS                                                                                                                                                                  \
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"                                   \
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ"                            \
    "ℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻" \
    "𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
#define DEEPSEEK_MARKS "[!-/:-~！-／：-～‘-‟　-。]+"
#define ASCII_MARKS "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"

const char mp_tok_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char mp_tok_pattern_qwen2[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" TAIL_PUBLISHED;
const char mp_tok_pattern_llama3[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" TAIL_PUBLISHED;
const char mp_tok_pattern_qwen35[] = CONTRACTIONS
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" BLANKS_PUBLISHED;
const char mp_tok_pattern_gpt4o[] = CASED(CONTRACTIONS "?") "|\\p{N}{1,3}|" SLASH_TAIL_PUBLISHED;
const char mp_tok_pattern_tekken[] = CASED("") "|\\p{N}|" SLASH_TAIL_PUBLISHED;
const char mp_tok_pattern_kimi[] =
    "[\\p{Han}]+|" LEAD KIMI_UPPER_PUBLISHED "*" KIMI_LOWER_PUBLISHED "+" CONTRACTIONS
    "?|" LEAD KIMI_UPPER_PUBLISHED "+" KIMI_LOWER_PUBLISHED "*" CONTRACTIONS
    "?|\\p{N}{1,3}|" TAIL_PUBLISHED;
const char mp_tok_pattern_digits3[] = "\\p{N}{1,3}";
const char mp_tok_pattern_digit[] = "\\p{N}";
const char mp_tok_pattern_digits[] = "\\p{N}+";
const char mp_tok_pattern_newline[] = "[\\r\\n]";
const char mp_tok_pattern_kana[] = "[一-龥぀-ゟ゠-ヿ]+";
const char mp_tok_pattern_asian[] = "[一-龥ࠀ-一가-퟿]+";
const char mp_tok_pattern_end_blanks[] = "\\s+$";
const char mp_tok_pattern_deepseek3[] = ASCII_MARKS
    "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" BLANKS_PUBLISHED;
const char mp_tok_pattern_deepseek_letters[] = "\\s?" DEEPSEEK_LETTERS;
const char mp_tok_pattern_deepseek_marks[] = "\\s?" DEEPSEEK_MARKS;
const char mp_tok_pattern_coder_letters[] = "\\s?\\p{L}+";
const char mp_tok_pattern_coder_marks[] = "\\s?\\p{P}+";

/* All take time linear in the text. A pattern is added here together with strings in the tests. */
static const struct {
    const char *published;
    const char *pcre;
} known_patterns[] = {
    { mp_tok_pattern_gpt2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS
                           "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+" },
    /* Qwen 2, 2.5, 3: each digit by itself */
    { mp_tok_pattern_qwen2, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" TAIL },
    /* Llama 3, GLM-4, DBRX, LFM2: digits in groups of three */
    { mp_tok_pattern_llama3, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" TAIL },
    /* Qwen 3.5: marks belong to words */
    { mp_tok_pattern_qwen35, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
                                          "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" BLANKS },
    /* gpt-oss, MiniMax-M2, Llama 4; Mistral's without contractions */
    { mp_tok_pattern_gpt4o, CASED(CONTRACTIONS "?") "|\\p{N}{1,3}|" SLASH_TAIL },
    { mp_tok_pattern_tekken, CASED("") "|\\p{N}|" SLASH_TAIL },
    /* Kimi K2: Chinese by itself */
    { mp_tok_pattern_kimi,
      HAN "+|" LEAD NOT_HAN(UPPER) "*" NOT_HAN(LOWER) "+" CONTRACTIONS "?|" LEAD NOT_HAN(
          UPPER) "+" NOT_HAN(LOWER) "*" CONTRACTIONS "?|\\p{N}{1,3}|" TAIL },
    /* Stages of DeepSeek's: each cuts what those before have left. Of blanks at the end of a text
     * the match starts where they start; elsewhere it would be looked for at each of them. */
    { mp_tok_pattern_digits3, "\\p{N}{1,3}" },
    { mp_tok_pattern_digit, "\\p{N}" },
    { mp_tok_pattern_digits, "\\p{N}+" },
    { mp_tok_pattern_newline, "[\\r\\n]" },
    { mp_tok_pattern_kana, mp_tok_pattern_kana },
    { mp_tok_pattern_asian, mp_tok_pattern_asian },
    { mp_tok_pattern_end_blanks, "(?<![" WS "])[" WS "]++\\z" },
    { mp_tok_pattern_deepseek3, ASCII_MARKS
      "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" BLANKS },
    { mp_tok_pattern_deepseek_letters, "[" WS "]?" DEEPSEEK_LETTERS },
    { mp_tok_pattern_deepseek_marks, "[" WS "]?" DEEPSEEK_MARKS },
    { mp_tok_pattern_coder_letters, "[" WS "]?\\p{L}+" },
    { mp_tok_pattern_coder_marks, "[" WS "]?\\p{P}+" },
};

bool mp_tok_pattern_is(const char *given, const char *known)
{
    for (; *known != '\0'; given++, known++) {
        if (*given == *known)
            continue;
        if (known[0] != '\\' ||
            !((known[1] == 'r' && *given == '\r') || (known[1] == 'n' && *given == '\n')))
            return false;
        known++;
    }
    return *given == '\0';
}

enum mp_status mp_tok_pattern_compile(const char *published, pcre2_code **code_p)
{
    PCRE2_SIZE at;
    int error;

    *code_p = NULL;
    for (size_t i = 0; i < MP_ARRAY_LEN(known_patterns); i++) {
        if (!mp_tok_pattern_is(published, known_patterns[i].published))
            continue;
        *code_p = pcre2_compile((PCRE2_SPTR)known_patterns[i].pcre, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
        if (*code_p == NULL && error == PCRE2_ERROR_HEAP_FAILED)
            return mp_fail_no_memory("a pattern", strlen(known_patterns[i].pcre));
        if (*code_p == NULL)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_TOK_PCRE",
                           "PCRE2 cannot compile a Split pattern at byte %zu: error %d; "
                           "it must be built with Unicode",
                           (size_t)at, error);
        /* Speed only: where there is no just-in-time compiler the interpreter runs. */
        (void)pcre2_jit_compile(*code_p, PCRE2_JIT_COMPLETE);
        return MP_OK;
    }
    return MP_OK;
}
