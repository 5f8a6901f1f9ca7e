/* Names of tensors from patterns, and the layer that a name gives back. */
#include "engine/model/arch/arch.h"

#include "tests/support/test.h"
#include "vmm/base/compiler.h"

static void numbers_take_their_places(void)
{
    static const struct {
        const char *pattern, *name;
    } cases[] = {
        { "{layer}", "3" },
        { "{layer}.{expert}.{slice}", "3.14.4294967295" },
        { "a{layer}{layer}b", "a33b" },
        { "plain", "plain" },
        { "{other}.{expert}", "{other}.14" },
        { "{{layer}", "{3" },
        { "x{", "x{" },
    };
    const struct mp_name_numbers numbers = { .layer = 3, .expert = 14, .slice = UINT32_MAX };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const size_t length = strlen(cases[i].name);

        for (size_t bytes = 0; bytes <= length + 2; bytes++) {
            char out[32], want[32];

            memset(out, 'z', sizeof(out));
            CHECK_EQ(mp_arch_format(out, bytes, cases[i].pattern, &numbers), length);
            CHECK(out[bytes] == 'z'); /* not beyond its end */
            if (bytes == 0)
                continue;
            snprintf(want, bytes, "%s", cases[i].name);
            CHECK_STR(out, want);
        }
    }
}

static void a_name_gives_its_layer_back(void)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
        uint32_t layer;
    } cases[] = {
        { "a.{layer}.b", "a.0.b", true, 0 },
        { "a.{layer}.b", "a.9.b", true, 9 },
        { "a.{layer}.b", "a.10.b", true, 10 },
        { "a.{layer}.b", "a.4294967295.b", true, UINT32_MAX },
        { "{layer}", "7", true, 7 },
        { "a.{layer}.b", "a.4294967296.b", false, 0 },
        { "a.{layer}.b", "a.18446744073709551617.b", false, 0 },
        { "a.{layer}.b", "a.01.b", false, 0 },
        { "a.{layer}.b", "a.00.b", false, 0 },
        { "a.{layer}.b", "a.010.b", false, 0 },
        { "a.{layer}.b", "a..b", false, 0 },
        { "a.{layer}.b", "a.:.b", false, 0 },
        { "a.{layer}.b", "a./.b", false, 0 },
        { "a.{layer}.b", "a.1.c", false, 0 },
        { "a.{layer}.b", "a.1.bc", false, 0 },
        { "a.{layer}.b", "a.1", false, 0 },
        { "a.{layer}.b", "b.1.b", false, 0 },
        { "a.{layer}.b", "", false, 0 },
        { "a.b", "a.b", false, 0 },
        { "{expert}.{layer}", "1.2", false, 0 },
        { "{layer}.{expert}", "1.2", false, 0 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        uint32_t layer = 12345;

        if (mp_arch_match(cases[i].pattern, cases[i].name, &layer) != cases[i].matches) {
            fprintf(stderr, "%s against %s\n", cases[i].name, cases[i].pattern);
            exit(1);
        }
        CHECK_EQ(layer, cases[i].matches ? cases[i].layer : 12345);
    }
}

static void families_are_listed_to_the_last(void)
{
    CHECK_STR(mp_arch_at(0)->model_type, "deepseek");
    CHECK_STR(mp_arch_gguf_at(0)->name, "deepseek");
    for (size_t i = 0; mp_arch_at(i) != NULL; i++) {
        CHECK(mp_arch_at(i)->name != NULL && mp_arch_at(i)->default_positions > 0);
        CHECK(i < 64);
    }
    CHECK(mp_arch_at(SIZE_MAX) == NULL && mp_arch_gguf_at(SIZE_MAX) == NULL);
}

int main(void)
{
    RUN(numbers_take_their_places);
    RUN(a_name_gives_its_layer_back);
    RUN(families_are_listed_to_the_last);
    return 0;
}
