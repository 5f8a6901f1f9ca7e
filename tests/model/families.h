#ifndef MP_TESTS_FAMILIES_H
#define MP_TESTS_FAMILIES_H

/*
 * Models of tools/hf/make_family_fixtures.py and make_numpy_fixtures.py, two shapes of each
 * family, of which the first of Mixtral's and Qwen2-MoE's are make_fixtures.py's and not here:
 * X(directory in tests/data/models).
 */
#define FAMILY_FIXTURES(X)    \
    DEVICE_FAMILY_FIXTURES(X) \
    CPU_FAMILY_FIXTURES(X)

/* Devices compute them too. */
#define DEVICE_FAMILY_FIXTURES(X) \
    X("deepseek-a")               \
    X("deepseek-b")               \
    X("mixtral-b")                \
    X("qwen2_moe-b")              \
    X("xverse-a")                 \
    X("xverse-b")

/* They ask for more than devices compute. */
#define CPU_FAMILY_FIXTURES(X) \
    X("deepseek_v2-a")         \
    X("deepseek_v2-b")         \
    X("deepseek_v3-a")         \
    X("deepseek_v3-b")         \
    X("ernie4_5_moe-a")        \
    X("ernie4_5_moe-b")        \
    X("gemma4_text-a")         \
    X("gemma4_text-b")         \
    X("glm4_moe-a")            \
    X("glm4_moe-b")            \
    X("glm4_moe_lite-a")       \
    X("glm4_moe_lite-b")       \
    X("gpt_oss-a")             \
    X("gpt_oss-b")             \
    X("granitemoe-a")          \
    X("granitemoe-b")          \
    X("lfm2_moe-a")            \
    X("lfm2_moe-b")            \
    X("minimax_m2-a")          \
    X("minimax_m2-b")          \
    X("olmoe-a")               \
    X("olmoe-b")               \
    X("phimoe-a")              \
    X("phimoe-b")              \
    X("qwen3_5_moe_text-a")    \
    X("qwen3_5_moe_text-b")    \
    X("qwen3_next-a")          \
    X("qwen3_next-b")

#endif
