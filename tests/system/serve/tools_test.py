#!/usr/bin/env python3
"""Calls of tools and thoughts in chats: usage: tools_test.py MOEPAGER

The bundled model knows no tools, so calls are forced (tool_choice) in the style of each family's template, whole and as a
stream, and read by the official `openai` client where Python has it.
"""
import json
import os
import sys
import tempfile

from serving import Server, refused

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
          "{% endif %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
DS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
STYLES = {  # words of templates that are not among the fixtures
    "deepseek-fenced": DS + "```json", "deepseek": DS, "coder": "<tool_call><function=", "minimax": "<minimax:tool_call>",
    "kimi": "<|tool_calls_section_begin|>", "mistral-named": "[TOOL_CALLS][ARGS]", "granite": "<|tool_call|>",
    "dsml": "<\uff5cDSML\uff5cfunction_calls>", "dsml-tools": "<\uff5cDSML\uff5ctool_calls>",
    "lfm2": "<|tool_list_start|>", "gemma": "<|tool_call><tool_call|>"}


def tool(name, properties, *required):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {
        "type": "object", "properties": properties, "required": list(required)}}}


TOOLS = [tool("get_weather", {"unit": {"enum": [7, 42]}, "deep": {"type": "object", "properties": {
    "on": {"type": "boolean"}}, "required": ["on"]}}, "unit", "deep"), tool("now", {"zone": {"enum": [1, 2]}})]
ASK = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def check_call(call, name=None):
    assert call["type"] == "function" and len(call["id"]) == 9, call
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] in ([name] if name else ["get_weather", "now"]), call
    if call["function"]["name"] == "get_weather":
        assert arguments["unit"] in (7, 42) and isinstance(arguments["deep"]["on"], bool), call
    else:
        assert arguments.get("zone") in (None, 1, 2), call


def check_style(name, template):
    with Server("--chat-template", template, "--batch", "2") as server:
        body = dict(messages=ASK, tools=TOOLS, max_tokens=400, tool_choice="required", parallel_tool_calls=False)
        whole = server.post(CHAT, **body)["choices"][0]
        calls = whole["message"].get("tool_calls")
        assert calls and whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None, (name, whole)
        assert len(calls) == 1
        check_call(calls[0])
        if name not in ("hermes", "harmony"):
            return
        events = server.stream(CHAT, **body)
        deltas = [e["choices"][0]["delta"] for e in events]
        streamed = [c for d in deltas for c in d.get("tool_calls", [])]
        assert [c["index"] for c in streamed] == [0] and streamed[0]["function"] == calls[0]["function"], (name, deltas)
        assert not any(d.get("content") for d in deltas), (name, deltas)
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
        one = {"type": "function", "function": {"name": "now"}}
        named = server.post(CHAT, **{**body, "tool_choice": one})["choices"][0]["message"]["tool_calls"]
        check_call(named[0], "now")
        # The call and its result go back; what the model says then is text.
        back = ASK + [{"role": "assistant", "content": None, "tool_calls": calls},
                      {"role": "tool", "tool_call_id": calls[0]["id"], "content": "42"}]
        r = server.post(CHAT, messages=back, tools=TOOLS, max_tokens=5)["choices"][0]
        assert r["finish_reason"] in ("length", "stop") and r["message"]["content"] is not None, (name, r)
        none = server.post(CHAT, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=5)
        plain = server.post(CHAT, messages=ASK, max_tokens=5)
        assert none["choices"] == plain["choices"] and none["usage"] == {
            **plain["usage"], "prompt_tokens_details": none["usage"]["prompt_tokens_details"]}


def check_thoughts(folder):
    path = os.path.join(folder, "thinking.jinja")
    with open(path, "w") as file:
        file.write(CHATML.replace("assistant\n{%", "assistant\n{% if enable_thinking is not defined or enable_thinking %}"
                                  "<think>\n{% endif %}{%") + "{# <tool_call> #}")
    with Server("--chat-template", path) as server:
        r = server.post(CHAT, messages=ASK, max_tokens=8)["choices"][0]["message"]
        assert r["reasoning_content"] and r["content"] == "", r
        events = server.stream(CHAT, messages=ASK, max_tokens=8)
        assert "".join(e["choices"][0]["delta"].get("reasoning_content", "") for e in events) == r["reasoning_content"]
        for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            r = server.post(CHAT, messages=ASK, max_tokens=8, **off)["choices"][0]["message"]
            assert r["content"] and "reasoning_content" not in r, r
        # Calls that must come end the thoughts that the prompt has begun.
        r = server.post(CHAT, messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=400)["choices"][0]
        assert r["finish_reason"] in ("tool_calls", "length"), r
        for call in r["message"].get("tool_calls", []):
            check_call(call)
        many = server.post(CHAT, messages=ASK, tools=TOOLS, tool_choice="required", n=3, temperature=1, seed=3,
                           max_tokens=300)["choices"]
        ids = [c["id"] for m in many for c in m["message"].get("tool_calls", [])]
        assert len(ids) == len(set(ids)) > 0, many


def check_refusals(folder):
    path = os.path.join(folder, "deepseek.jinja")
    ask = dict(messages=ASK)
    with Server("--chat-template", path) as server:
        def no(code, **body):
            refused(server, 400, code, {**ask, **body}, CHAT)
        no("E_REQUEST", tools={})
        no("E_REQUEST", tools=TOOLS * 65)
        no("E_REQUEST", tools=TOOLS * 17, tool_choice="required")
        no("E_REQUEST", tools=[{"type": "search"}])
        no("E_REQUEST", tools=[tool("a b", {})])
        no("E_REQUEST", tools=[{"type": "function", "function": {"name": "a", "parameters": 1}}])
        no("E_REQUEST", tools=TOOLS, tool_choice="always")
        no("E_REQUEST", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "other"}})
        no("E_REQUEST", tool_choice="required")
        no("E_REQUEST", tools=TOOLS, response_format={"type": "json_object"})
        no("E_REQUEST", chat_template_kwargs=[])
        no("E_REQUEST", reasoning_effort=1)
        no("E_REQUEST", messages=ASK + [{"role": "assistant", "tool_calls": [{"id": "x"}]}])
        no("E_REQUEST", messages=ASK + [{"role": "assistant", "content": None}])
        no("E_FORMAT", tools=[tool("a", {"x": {"pattern": "a"}})], tool_choice="required")
        assert server.post(CHAT, **ask, tools=[tool("a", {"x": {"pattern": "a"}})], max_tokens=3)
    with Server() as server:
        refused(server, 400, "E_CHAT_TOOLS", {**ask, "tools": TOOLS}, CHAT)
        assert server.post(CHAT, **ask, tools=[], tool_choice="auto", max_tokens=3)


def check_client(template):
    try:
        import openai
    except ImportError:
        print("without the openai client: this Python has no package openai")
        return
    with Server("--chat-template", template) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        asked = dict(model="tiny-moe", messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=400,
                     parallel_tool_calls=False)
        r = client.chat.completions.create(**asked).choices[0]
        assert r.finish_reason == "tool_calls"
        check_call(r.message.tool_calls[0].model_dump())
        with client.chat.completions.stream(**asked) as stream:
            got = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert got.function.name == r.message.tool_calls[0].function.name
        assert json.loads(got.function.arguments) == json.loads(r.message.tool_calls[0].function.arguments)
        back = ASK + [r.message, {"role": "tool", "tool_call_id": r.message.tool_calls[0].id, "content": "42"}]
        assert client.chat.completions.create(**{**asked, "messages": back, "tool_choice": "auto",
                                                 "max_tokens": 4}).choices[0].message.role == "assistant"


with tempfile.TemporaryDirectory() as made:
    for style, words in STYLES.items():
        with open(os.path.join(made, style + ".jinja"), "w") as out:
            out.write(CHATML + "{# " + words + " #}")
        check_style(style, os.path.join(made, style + ".jinja"))
    for style in ("hermes", "harmony", "mistral", "tagged"):
        check_style(style, f"tests/data/chat/{style}.jinja")
    check_thoughts(made)
    check_refusals(made)
    check_client("tests/data/chat/hermes.jinja")
sys.exit(0)
