/*
 * Ids and texts equal to those of the `tokenizers` library: twelve tokenizers, the strings of
 * tests/data/tokenizers.
 */
#include "tests/unit/engine/tokenizer_expected.h"

static void byte_level_with_the_gpt2_pattern(void)
{
    check_tokenizer("gpt2");
}

static void byte_level_with_nfc_and_the_qwen2_pattern(void)
{
    check_tokenizer("qwen2");
}

static void the_other_normal_forms(void)
{
    check_tokenizer("nfd");
    check_tokenizer("nfkc");
    check_tokenizer("nfkd");
}

static void byte_level_with_the_llama3_pattern_and_ignore_merges(void)
{
    check_tokenizer("llama3");
}

static void byte_fallback_with_prepend_and_replace(void)
{
    check_tokenizer("llama");
}

static void byte_fallback_with_metaspace(void)
{
    check_tokenizer("metaspace");
}

static void metaspace_words_and_missing_bytes(void)
{
    check_tokenizer("metaspace_cut");
}

static void pieces_with_scores(void)
{
    check_tokenizer("unigram");
    check_tokenizer("unigram_bytes");
}

static void words_that_end_behind_spaces(void)
{
    check_tokenizer("gemma");
}

int main(void)
{
    RUN(byte_level_with_the_gpt2_pattern);
    RUN(byte_level_with_nfc_and_the_qwen2_pattern);
    RUN(byte_level_with_the_llama3_pattern_and_ignore_merges);
    RUN(the_other_normal_forms);
    RUN(byte_fallback_with_prepend_and_replace);
    RUN(byte_fallback_with_metaspace);
    RUN(metaspace_words_and_missing_bytes);
    RUN(pieces_with_scores);
    RUN(words_that_end_behind_spaces);
    return 0;
}
