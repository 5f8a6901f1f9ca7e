/*
 * Answers of models with thoughts and calls, as each family writes them, whole and cut at every
 * byte: what is thought, said and called.
 */
#include "engine/text/calls/calls.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"

#define BAR "\xef\xbd\x9c"
#define LINE "\xe2\x96\x81"
#define DSML(word) "<" BAR "DSML" BAR word
#define DS(word) "<" BAR "tool" LINE word BAR ">"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}]";

/* A template's words, an answer, and what it says; calls as name(arguments) one behind another. */
static const struct {
    const char *words, *answer, *thoughts, *content, *calls;
    bool thinking;
} cases[] = {
    /* Hermes, Qwen 2.5, Qwen 3 */
    { "<tool_call>", "Just text. ", "", "Just text. ", "", false },
    { "<tool_call>",
      "<think>\nThe user wants\nweather.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": "
      "\"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\", \"days\": 1.50}}\n</tool_call>",
      "The user wants\nweather.", "Let me see.",
      "get_weather({\"city\": \"K\xc3\xb6ln\", \"days\": 1.50})", false },
    { "<tool_call>", "still thinking</think>Done", "still thinking", "Done", "", true },
    { "<tool_call>", "never done", "never done", "", "", true },
    { "<tool_call>",
      "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"arguments\": "
      "{\"x\": [1, {\"y\": \"}\"}]}, \"name\": \"b\"}\n</tool_call>",
      "", "", "a({})b({\"x\": [1, {\"y\": \"}\"}]})", false },
    { "<tool_call>",
      "<tool_call>{\"name\": \"a\", \"arguments\": {\"t\": \"</tool_call>\"}}</tool_call>", "", "",
      "a({\"t\": \"</tool_call>\"})", false },
    { "<tool_call>", "<tool_call>{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
      "", "", "a({\"x\": 1})", false },
    { "<tool_call>", "<tool_call>\nno JSON\n</tool_call> and more", "",
      "<tool_call>\nno JSON\n</tool_call> and more", "", false },
    { "<tool_call>", "a <tool_call>\n{\"name\": \"a\", \"argu", "",
      "a<tool_call>\n{\"name\": \"a\", \"argu", "", false },
    { "<tool_call>", "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>", "",
      "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>", "", false },
    { "<tool_call>", "a < b, <tool> and <thi", "", "a < b, <tool> and <thi", "", false },
    /* Qwen 3 Coder, Qwen 3.5 */
    { "<tool_call> <function=",
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\nlines\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n<parameter=other>\n{\"a\": [1]}\n</parameter>\n"
      "</function>\n</tool_call>",
      "", "", "get_weather({\"city\": \"12\\nlines\", \"days\": 3, \"other\": {\"a\": [1]}})",
      false },
    { "<tool_call> <function=", "Hm.\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "",
      "Hm.", "now({})", false },
    /* GLM */
    { "<tool_call> <arg_key>",
      "\n<think>Cologne.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
      "<arg_value>7</arg_value>\n<arg_key>days</arg_key><arg_value>2</arg_value>\n</tool_call>\n"
      "<tool_call>now</tool_call>",
      "Cologne.", "I look.", "get_weather({\"city\": \"7\", \"days\": 2})now({})", false },
    { "<tool_call> <arg_key>", "<tool_call>now\n<arg_key>no end</tool_call>", "",
      "<tool_call>now\n<arg_key>no end</tool_call>", "", false },
    /* DeepSeek V3, R1; V3.1 */
    { DS("calls" LINE "begin") " ```json",
      "Hm.</think>I call." DS("calls" LINE "begin")
          DS("call" LINE "begin") "function" DS("sep") "get_weather\n```json\n{\"city\": \"x\"}\n```" DS(
              "call" LINE
              "end") "\n" DS("call" LINE
                             "begin") "function" DS("sep") "now\n```json\n{}\n```" DS("call" LINE
                                                                                      "end")
              DS("calls" LINE "end"),
      "Hm.", "I call.", "get_weather({\"city\": \"x\"})now({})", true },
    { DS("calls" LINE "begin"),
      "I call." DS("calls" LINE "begin") DS("call" LINE "begin") "get_weather" DS(
          "sep") "{\"city\": \"x\"}" DS("call" LINE "end")
          DS("call" LINE "begin") "now" DS("sep") "{}" DS("call" LINE "end") DS("calls" LINE "end"),
      "", "I call.", "get_weather({\"city\": \"x\"})now({})", false },
    /* Kimi K2, Moonlight */
    { "<|tool_calls_section_begin|>",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
      "{}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>"
      "{\"days\": 2}<|tool_call_end|><|tool_calls_section_end|>",
      "", "", "now({})get_weather({\"days\": 2})", false },
    /* Mistral, old and new */
    { "[TOOL_CALLS]",
      "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"get_weather\", "
      "\"arguments\": {\"city\": \"x\"}, \"id\": \"123456789\"}]",
      "", "", "now({})get_weather({\"city\": \"x\"})", false },
    { "[TOOL_CALLS] [ARGS]",
      "[THINK]Hm.[/THINK]I call.[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[CALL_ID]abcdefghi"
      "[ARGS]{\"city\": \"x\"}",
      "Hm.", "I call.", "now({})get_weather({\"city\": \"x\"})", false },
    /* Granite */
    { "<|tool_call|>", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]", "", "", "now({})",
      false },
    /* MiniMax M2 */
    { "<minimax:tool_call>",
      "<think>\nHm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
      "name=\"city\">x</parameter>\n<parameter name=\"days\">4</parameter>\n</invoke>\n<invoke "
      "name=\"now\">\n</invoke>\n</minimax:tool_call>",
      "Hm.", "", "get_weather({\"city\": \"x\", \"days\": 4})now({})", false },
    /* DeepSeek V3.2 and later */
    { DSML("function_calls"),
      "<think>Hm.</think>I call.\n\n" DSML("function_calls") ">\n" DSML("invoke name=\"get_weather\"") ">\n" DSML(
          "parameter name=\"city\" string=\"true\"") ">7</" BAR "DSML" BAR
                                                     "parameter>\n" DSML(
                                                         "parameter name=\"days\" string=\"false\"") ">[3]</" BAR
                                                                                                     "DSML" BAR
                                                                                                     "parameter>\n</" BAR
                                                                                                     "DSML" BAR
                                                                                                     "invoke>\n" DSML(
                                                                                                         "invoke name=\"now\"") ">\n</" BAR
                                                                                                                                "DSML" BAR
                                                                                                                                "invoke>\n</" BAR
                                                                                                                                "DSML" BAR
                                                                                                                                "function_calls>",
      "Hm.", "I call.", "get_weather({\"city\": \"7\", \"days\": [3]})now({})", false },
    { DSML("tool_calls"),
      DSML("tool_calls") ">" DSML("invoke name=\"a\"") ">" DSML(
          "parameter name=\"x\" string=\"false\"") ">1</" BAR "DSML" BAR
                                                   "parameter>" DSML(
                                                       "parameter name=\"y\" string=\"true\"") "> [2] </" BAR
                                                                                               "DSML" BAR
                                                                                               "parameter></" BAR
                                                                                               "DSML" BAR
                                                                                               "invoke></" BAR
                                                                                               "DSML" BAR
                                                                                               "tool_calls>",
      "", "", "a({\"x\": 1, \"y\": \" [2] \"})", false },
    /* LFM2: as Python writes calls, or JSON */
    { "<|tool_list_start|>",
      "Let me see.<|tool_call_start|>[get_weather(city=\"K\xc3\xb6ln\", days=3, far=True), "
      "now(zone=None)]<|tool_call_end|>",
      "", "Let me see.",
      "get_weather({\"city\": \"K\xc3\xb6ln\", \"days\": 3, \"far\": true})now({\"zone\": null})",
      false },
    { "<|tool_call_start|>",
      "<think>a</think><|tool_call_start|>[f(a='it\\'s\\n\\u00e9\\q', b=[1, -2.5e+3,], c={'k': "
      "(1, \"x\")}, d=False)]<|tool_call_end|> Wait.",
      "a", "Wait.",
      "f({\"a\": \"it's\\n\xc3\xa9\\\\q\", \"b\": [1, -2.5e+3], \"c\": {\"k\": [1, \"x\"]}, \"d\": "
      "false})",
      false },
    { "<|tool_call_start|>",
      "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|tool_call_end|>", "", "",
      "f({\"a\": 1})", false },
    { "<|tool_call_start|>", "<|tool_call_start|>[now()]<|tool_call_end|>", "", "", "now({})",
      false },
    { "<|tool_call_start|>", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "",
      "<|tool_call_start|>[f(1)]<|tool_call_end|>", "", false },
    { "<|tool_call_start|>", "<|tool_call_start|>[f(a='no end)]<|tool_call_end|>", "",
      "<|tool_call_start|>[f(a='no end)]<|tool_call_end|>", "", false },
    { "<|tool_call_start|>", "<|tool_call_start|>[f(a=os.exit)]<|tool_call_end|>", "",
      "<|tool_call_start|>[f(a=os.exit)]<|tool_call_end|>", "", false },
    /* Gemma 4 */
    { "<|tool_call> <tool_call|>",
      "<|channel>thought\nHm.\n<channel|>I look.<|tool_call>call:get_weather{city:<|\"|>it's "
      "\"x\"<|\"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>",
      "Hm.", "I look.", "get_weather({\"city\": \"it's \\\"x\\\"\", \"days\": 3})now({})", false },
    { "<|tool_call> <tool_call|>",
      "<|tool_call>call:f{a:{b:[1,<|\"|>}<|\"|>],<|\"|>c d<|\"|>:true},e:null,\"f\":false,}<tool_call|>",
      "", "", "f({\"a\": {\"b\": [1, \"}\"], \"c d\": true}, \"e\": null, \"f\": false})", false },
    { "<|tool_call> <tool_call|>", "<|tool_call>call:f{a:b}<tool_call|>", "",
      "<|tool_call>call:f{a:b}<tool_call|>", "", false },
    /* gpt-oss */
    { "<|channel|> <|message|>",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>Yes."
      "<|end|><|start|>assistant<|channel|>final<|message|>It is 3 < 4.",
      "Hm.\nYes.", "It is 3 < 4.", "", false },
    { "<|channel|> <|message|>",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"x\"}<|call|>",
      "Hm.", "", "get_weather({\"city\": \"x\"})", false },
    { "<|channel|> <|message|>",
      "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now"
      "<|channel|>commentary json<|message|>{}",
      "", "I look.", "now({})", false },
    { "<|channel|> <|message|>", "<|channel|>commentary to=functions.now json<|message|>{no", "",
      "{no", "", false },
    { "<|channel|> <|message|>", "no channel", "", "no channel", "", false },
    /* thoughts only; nothing that is known */
    { "<think></think>", "<think>a</think>b <tool_call>", "a", "b <tool_call>", "", false },
    { "", "<think>a</think><tool_call>", "", "<think>a</think><tool_call>", "", false },
};

static void check_reply(size_t i, const struct mp_reply *r)
{
    char calls[512] = "";
    size_t used = 0;

    for (size_t k = 0; k < r->call_count; k++)
        used += (size_t)snprintf(calls + used, sizeof(calls) - used, "%s(%s)", r->calls[k].name,
                                 r->calls[k].arguments);
    CHECK_STR(r->thoughts.data != NULL ? r->thoughts.data : "", cases[i].thoughts);
    CHECK_STR(r->content.data != NULL ? r->content.data : "", cases[i].content);
    CHECK_STR(calls, cases[i].calls);
    CHECK_EQ(r->rest.bytes, 0);
}

/* In parts of `step` bytes; 0: as a whole. */
static void check_case(size_t i, size_t step, const json_t *tools)
{
    const char *answer = cases[i].answer;
    const size_t bytes = strlen(answer);
    struct mp_reply r;

    mp_reply_begin(&r, mp_calls_find_style(cases[i].words, strlen(cases[i].words)), tools,
                   cases[i].thinking);
    for (size_t at = 0; at < bytes; at += step) {
        step = step == 0 ? bytes : step;
        CHECK_EQ(mp_reply_push(&r, answer + at, bytes - at < step ? bytes - at : step), MP_OK);
    }
    CHECK_EQ(mp_reply_finish(&r), MP_OK);
    check_reply(i, &r);
    mp_reply_free(&r);
}

/* What was given once stays, and is given as soon as it is known. */
static void what_is_known_is_given_at_once(void)
{
    struct mp_reply r;

    mp_reply_begin(&r, mp_calls_find_style("<tool_call>", 11), NULL, false);
    CHECK_EQ(mp_reply_push(&r, "Hello \n<to", 10), MP_OK);
    CHECK_STR(r.content.data, "Hello");
    CHECK_EQ(mp_reply_push(&r, "ol", 2), MP_OK);
    CHECK_STR(r.content.data, "Hello");
    CHECK_EQ(mp_reply_push(&r, "s> x", 4), MP_OK);
    CHECK_STR(r.content.data, "Hello \n<tools> x");
    CHECK_EQ(mp_reply_push(&r, "<tool_call>{\"name\":\"a\"}</tool_call>", 35), MP_OK);
    CHECK_EQ(r.call_count, 1);
    CHECK_STR(r.calls[0].arguments, "{}");
    mp_reply_free(&r);
}

/* A 0 behind a number makes it a text. */
static void zeros_are_of_texts(void)
{
    static const char call[] = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>22\0</arg_value>\n"
                               "<arg_key>b</arg_key>\n<arg_value>true\0</arg_value>\n</tool_call>";
    struct mp_reply r;

    mp_reply_begin(&r, mp_calls_find_style("<tool_call> <arg_key>", 21), NULL, false);
    CHECK_EQ(mp_reply_push(&r, call, sizeof(call) - 1), MP_OK);
    CHECK_EQ(mp_reply_finish(&r), MP_OK);
    CHECK_EQ(r.call_count, 1);
    CHECK_STR(r.calls[0].arguments, "{\"n\": \"22\\u0000\", \"b\": \"true\\u0000\"}");
    mp_reply_free(&r);
}

/* More calls than there is room for are text. */
static void calls_without_room_are_text(void)
{
    static const char call[] = "<tool_call>{\"name\":\"a\"}</tool_call>";
    struct mp_reply r;

    mp_reply_begin(&r, mp_calls_find_style("<tool_call>", 11), NULL, false);
    for (unsigned i = 0; i < MP_CALLS_MAX + 1; i++)
        CHECK_EQ(mp_reply_push(&r, call, sizeof(call) - 1), MP_OK);
    CHECK_EQ(mp_reply_finish(&r), MP_OK);
    CHECK_EQ(r.call_count, MP_CALLS_MAX);
    CHECK_STR(r.content.data, call);
    mp_reply_free(&r);
}

static void prompts_may_begin_thoughts(void)
{
    const struct mp_calls_style *hermes = mp_calls_find_style("<tool_call>", 11);

    CHECK(mp_calls_begins_thoughts(hermes, "assistant\n<think>\n", 18));
    CHECK(!mp_calls_begins_thoughts(hermes, "<think>\n\n</think>\n\n", 19));
    CHECK(!mp_calls_begins_thoughts(hermes, "think>", 6));
    CHECK(!mp_calls_begins_thoughts(NULL, "<think>", 7));
}

static void every_answer_is_sorted_however_it_is_cut(void)
{
    json_t *tools = json_loads(tools_json, 0, NULL);

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        for (size_t step = 0; step < 5; step++)
            check_case(i, step, tools);
    }
    json_decref(tools);
}

static void every_allocation_fails_once(void)
{
    json_t *tools = json_loads(tools_json, 0, NULL);

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        for (uint64_t n = 0, failed = 1; failed > 0; n++) {
            struct mp_reply r;
            enum mp_status status;

            mp_reply_begin(&r, mp_calls_find_style(cases[i].words, strlen(cases[i].words)), tools,
                           cases[i].thinking);
            fault_nth(FAULT_ALLOCATIONS, n);
            status = mp_reply_push(&r, cases[i].answer, strlen(cases[i].answer));
            if (status == MP_OK)
                status = mp_reply_finish(&r);
            failed = fault_end();
            CHECK_EQ(status, failed > 0 ? MP_ERR_NO_MEMORY : MP_OK);
            if (failed == 0)
                check_reply(i, &r);
            mp_reply_free(&r);
        }
    }
    json_decref(tools);
}

int main(void)
{
    RUN(every_answer_is_sorted_however_it_is_cut);
    RUN(what_is_known_is_given_at_once);
    RUN(zeros_are_of_texts);
    RUN(calls_without_room_are_text);
    RUN(prompts_may_begin_thoughts);
    RUN(every_allocation_fails_once);
    return 0;
}
