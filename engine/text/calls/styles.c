/*
 * The styles of calls, and how to tell them apart.
 */
#include <string.h>

#include "engine/text/calls/calls.h"
#include "vmm/base/compiler.h"

#define THINK [MP_CALLS_THINK] = "<think>", [MP_CALLS_THOUGHT] = "</think>"
#define BAR "\xef\xbd\x9c" /* the bar and the low line of DeepSeek's words */
#define LINE "\xe2\x96\x81"
#define SECTION "<" BAR "tool" LINE "calls" LINE
#define CALL "<" BAR "tool" LINE "call" LINE
#define SEPARATOR "<" BAR "tool" LINE "sep" BAR ">"

#define DSML(word) "<" BAR "DSML" BAR word
#define DSML_END(word) "</" BAR "DSML" BAR word ">"

/* DeepSeek V3.2, whose calls stand between tags of this name, and what follows it with another. */
#define DSML_STYLE(name, calls)                                                                  \
    {                                                                                            \
        { DSML(calls) },                                                                         \
        {                                                                                        \
            name, MP_CALLS_TAGGED,                                                               \
            {                                                                                    \
                THINK, [MP_CALLS_OPEN] = DSML(calls) ">\n", [MP_CALLS_CLOSE] = DSML_END(calls),  \
                       [MP_CALLS_NEXT] = "", [MP_CALLS_NAME] = DSML("invoke name=\""),           \
                       [MP_CALLS_ARGUMENTS] = "\">\n", [MP_CALLS_END] = DSML_END("invoke") "\n", \
                       [MP_CALLS_KEY] = DSML("parameter name=\""),                               \
                       [MP_CALLS_VALUE] = "\" string=\"true\">",                                 \
                       [MP_CALLS_VALUE_END] = DSML_END("parameter") "\n",                        \
                       [MP_CALLS_JSON] = "\" string=\"false\">",                                 \
                       [MP_CALLS_JSON_END] = DSML_END("parameter") "\n"                          \
            }                                                                                    \
        }                                                                                        \
    }

/* LFM2, whose older templates name the list of tools only. */
#define LFM2_STYLE(word)                                                                  \
    {                                                                                     \
        { word },                                                                         \
        {                                                                                 \
            "lfm2", MP_CALLS_PYTHON,                                                      \
            {                                                                             \
                THINK, [MP_CALLS_OPEN] = "<|tool_call_start|>[",                          \
                       [MP_CALLS_CLOSE] = "]<|tool_call_end|>", [MP_CALLS_NEXT] = ", ",   \
                       [MP_CALLS_NAME] = "{\"name\": \"",                                 \
                       [MP_CALLS_ARGUMENTS] = "\", \"arguments\": ", [MP_CALLS_END] = "}" \
            }                                                                             \
        }                                                                                 \
    }

/* The first style all of whose words the template has is the one. */
static const struct {
    const char *words[3];
    struct mp_calls_style style;
} styles[] = {
    { { "<|channel|>", "<|message|>" },
      { "channels",
        MP_CALLS_CHANNELS,
        { [MP_CALLS_OPEN] = "<|channel|>commentary to=",
          [MP_CALLS_NAME] = "functions.",
          [MP_CALLS_ARGUMENTS] = " <|constrain|>json<|message|>",
          [MP_CALLS_END] = "",
          [MP_CALLS_OTHER] = "<|start|><|end|><|call|><|return|>" } } },
    { { SECTION "begin" BAR ">", "```json" },
      { "deepseek-fenced",
        MP_CALLS_NAMED,
        { THINK, [MP_CALLS_OPEN] = SECTION "begin" BAR ">",
          [MP_CALLS_CLOSE] = SECTION "end" BAR ">", [MP_CALLS_NEXT] = "\n",
          [MP_CALLS_NAME] = CALL "begin" BAR ">function" SEPARATOR,
          [MP_CALLS_ARGUMENTS] = "\n```json\n", [MP_CALLS_END] = "\n```" CALL "end" BAR ">" } } },
    { { SECTION "begin" BAR ">" },
      { "deepseek",
        MP_CALLS_NAMED,
        { THINK, [MP_CALLS_OPEN] = SECTION "begin" BAR ">",
          [MP_CALLS_CLOSE] = SECTION "end" BAR ">", [MP_CALLS_NEXT] = "",
          [MP_CALLS_NAME] = CALL "begin" BAR ">", [MP_CALLS_ARGUMENTS] = SEPARATOR,
          [MP_CALLS_END] = CALL "end" BAR ">" } } },
    DSML_STYLE("dsml", "function_calls"),
    DSML_STYLE("dsml-tools", "tool_calls"),
    LFM2_STYLE("<|tool_call_start|>"),
    LFM2_STYLE("<|tool_list_start|>"),
    { { "<|tool_call>", "<tool_call|>" },
      { "gemma",
        MP_CALLS_BARE,
        { [MP_CALLS_THINK] = "<|channel>thought",
          [MP_CALLS_THOUGHT] = "<channel|>",
          [MP_CALLS_OPEN] = "<|tool_call>",
          [MP_CALLS_CLOSE] = "<tool_call|>",
          [MP_CALLS_NEXT] = "<tool_call|><|tool_call>",
          [MP_CALLS_NAME] = "call:",
          [MP_CALLS_ARGUMENTS] = "{",
          [MP_CALLS_END] = "}",
          [MP_CALLS_KEY] = "",
          [MP_CALLS_VALUE] = ":<|\"|>",
          [MP_CALLS_VALUE_END] = "<|\"|>,",
          [MP_CALLS_JSON] = ":",
          [MP_CALLS_JSON_END] = "," } } },
    { { "<|tool_calls_section_begin|>" },
      { "kimi",
        MP_CALLS_NAMED,
        { THINK, [MP_CALLS_OPEN] = "<|tool_calls_section_begin|>",
          [MP_CALLS_CLOSE] = "<|tool_calls_section_end|>", [MP_CALLS_NEXT] = "",
          [MP_CALLS_NAME] = "<|tool_call_begin|>functions.",
          [MP_CALLS_ARGUMENTS] = ":0<|tool_call_argument_begin|>",
          [MP_CALLS_END] = "<|tool_call_end|>" } } },
    { { "[TOOL_CALLS]", "[ARGS]" },
      { "mistral-named",
        MP_CALLS_NAMED,
        { [MP_CALLS_THINK] = "[THINK]",
          [MP_CALLS_THOUGHT] = "[/THINK]",
          [MP_CALLS_OPEN] = "[TOOL_CALLS]",
          [MP_CALLS_NEXT] = "[TOOL_CALLS]",
          [MP_CALLS_NAME] = "",
          [MP_CALLS_ARGUMENTS] = "[ARGS]",
          [MP_CALLS_END] = "",
          [MP_CALLS_OTHER] = "[CALL_ID]" } } },
    { { "[TOOL_CALLS]" },
      { "mistral",
        MP_CALLS_OBJECT,
        { [MP_CALLS_OPEN] = "[TOOL_CALLS] [",
          [MP_CALLS_TAIL] = "]",
          [MP_CALLS_NEXT] = ", ",
          [MP_CALLS_NAME] = "{\"name\": \"",
          [MP_CALLS_ARGUMENTS] = "\", \"arguments\": ",
          [MP_CALLS_END] = "}" } } },
    { { "<minimax:tool_call>" },
      { "minimax",
        MP_CALLS_TAGGED,
        { THINK, [MP_CALLS_OPEN] = "<minimax:tool_call>\n",
          [MP_CALLS_CLOSE] = "</minimax:tool_call>", [MP_CALLS_NEXT] = "",
          [MP_CALLS_NAME] = "<invoke name=\"", [MP_CALLS_ARGUMENTS] = "\">\n",
          [MP_CALLS_END] = "</invoke>\n", [MP_CALLS_KEY] = "<parameter name=\"",
          [MP_CALLS_VALUE] = "\">", [MP_CALLS_VALUE_END] = "</parameter>\n" } } },
    { { "<tool_call>", "<arg_key>" },
      { "glm",
        MP_CALLS_TAGGED,
        { THINK, [MP_CALLS_OPEN] = "<tool_call>", [MP_CALLS_CLOSE] = "</tool_call>",
          [MP_CALLS_NEXT] = "</tool_call>\n<tool_call>", [MP_CALLS_NAME] = "",
          [MP_CALLS_ARGUMENTS] = "\n", [MP_CALLS_END] = "", [MP_CALLS_KEY] = "<arg_key>",
          [MP_CALLS_VALUE] = "</arg_key>\n<arg_value>",
          [MP_CALLS_VALUE_END] = "</arg_value>\n" } } },
    { { "<tool_call>", "<function=" },
      { "tagged",
        MP_CALLS_TAGGED,
        { THINK, [MP_CALLS_OPEN] = "<tool_call>\n", [MP_CALLS_CLOSE] = "</tool_call>",
          [MP_CALLS_NEXT] = "</tool_call>\n<tool_call>\n", [MP_CALLS_NAME] = "<function=",
          [MP_CALLS_ARGUMENTS] = ">\n", [MP_CALLS_END] = "</function>\n",
          [MP_CALLS_KEY] = "<parameter=", [MP_CALLS_VALUE] = ">\n",
          [MP_CALLS_VALUE_END] = "\n</parameter>\n" } } },
    { { "<tool_call>" },
      { "hermes",
        MP_CALLS_OBJECT,
        { THINK, [MP_CALLS_OPEN] = "<tool_call>\n", [MP_CALLS_CLOSE] = "\n</tool_call>",
          [MP_CALLS_NEXT] = "\n</tool_call>\n<tool_call>\n", [MP_CALLS_NAME] = "{\"name\": \"",
          [MP_CALLS_ARGUMENTS] = "\", \"arguments\": ", [MP_CALLS_END] = "}" } } },
    { { "<|tool_call|>" },
      { "granite",
        MP_CALLS_OBJECT,
        { THINK, [MP_CALLS_OPEN] = "<|tool_call|>[", [MP_CALLS_TAIL] = "]", [MP_CALLS_NEXT] = ", ",
          [MP_CALLS_NAME] = "{\"name\": \"", [MP_CALLS_ARGUMENTS] = "\", \"arguments\": ",
          [MP_CALLS_END] = "}" } } },
    { { "<think>", "</think>" }, { "thoughts", MP_CALLS_NONE, { THINK } } },
};

const struct mp_calls_style *mp_calls_find_style(const char *jinja, size_t bytes)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(styles); i++) {
        bool all = true;

        for (size_t k = 0; k < MP_ARRAY_LEN(styles[i].words) && styles[i].words[k] != NULL; k++)
            all =
                all && memmem(jinja, bytes, styles[i].words[k], strlen(styles[i].words[k])) != NULL;
        if (all)
            return &styles[i].style;
    }
    return NULL;
}
