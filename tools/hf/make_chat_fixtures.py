#!/usr/bin/env python3
"""Make tests/data/chat: what Jinja makes of templates.

    python3 tools/hf/make_chat_fixtures.py
    python3 tools/hf/make_chat_fixtures.py --check PROGRAM TEMPLATE...

Needs `pip install jinja2`; its settings are those of `apply_chat_template` of transformers. The first
form renders tests/data/chat/*.jinja, written for this purpose, for each conversation of
conversations() below, and the pieces of language of PIECES, and writes cases.json. The second does
the same for templates of published models, and has the test program (unit/engine/jinja_cases_test)
compare: prints a row for each template, how many conversations are equal and how many of them both
refuse, and a sum.

cases.json: {"variables": {SET: [{...}]},
             "cases": [{"name", "template", "variables": SET, "texts": ["..." or null: it must fail]}]}
"""
import datetime
import glob
import json
import os
import subprocess
import sys
import tempfile

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "chat")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NOW = datetime.datetime.fromtimestamp(1780000000)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, \
        sort_keys=False: json.dumps(x, ensure_ascii=ensure_ascii, indent=indent,
                                    separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    return env


def tool(name, description, required, **properties):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required}}}


WEATHER = tool("get_weather", "The weather of a \"city\" & more <now>.", ["city"],
               city={"type": "string", "description": "City, e.g. Zürich"},
               unit={"type": "string", "enum": ["c", "f"]}, days={"type": "integer", "default": 3},
               exact={"type": "boolean"}, tags={"type": "array", "items": {"type": "string"}},
               at={"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                   "required": ["lat"]})
ADD = tool("add", "Add numbers", ["a", "b"], a={"type": "number"}, b={"type": "number"})
THOUGHT = "I think, therefore.\nSecond line."


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, number="abc123XYZ"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, number="abc123XYZ", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": number, "name": name}


def conversations():
    """At least 30: system messages, turns, tools, thinking on and off."""
    made = []

    def add(*messages, ask=True, **more):
        made.append({"messages": list(messages), "add_generation_prompt": ask, **more})

    tools = [WEATHER, ADD]
    full = {"city": "Zürich", "unit": "c", "days": 2, "exact": True, "at": {"lat": 1.5}, "tags": ["a", "b"]}
    one = [user("w?"), answer("", tool_calls=[call("get_weather", full)]), result('{"t": 21}')]
    add(user("Hi"))
    add(system("Be brief."), user("Hi"))
    add(user("1"), answer("2"), user("3"))
    add(system("Sys  "), user(" a "), answer(" b "), user("c\n\nd"))
    add(user("Ünïcode 🙂 \"quoted\" <|im_end|> </s>"))
    add(user(""))
    add(user("1"), answer("<think>\nhm\n</think>\n\n2"), user("3"))
    add(user("1"), answer("2", reasoning_content=THOUGHT), user("3"))
    add(system("s"), user("1"), answer("2", reasoning_content=THOUGHT), user("3"),
        answer("4", reasoning_content=THOUGHT), user("5"))
    add(user("Hi"), enable_thinking=False)
    add(user("Hi"), enable_thinking=True)
    add(system("s"), user("1"), answer("<think>x</think>y"), user("2"), enable_thinking=False)
    add(user("1"), answer("2"), ask=False)
    add(system("s"), user("1"), answer("2", reasoning_content=THOUGHT), ask=False)
    add(user("1"), ask=False)
    add(user("w?"), tools=tools)
    add(system("s"), user("w?"), tools=tools)
    add(user("w?"), tools=[ADD])
    add(user("w?"), tools=tools, enable_thinking=False)
    add(*one, tools=tools)
    add(system("s"), *one, tools=tools)
    add(*one, answer("21"), user("and?"), tools=tools)
    add(user("w?"), answer(None, tool_calls=[call("add", {"a": 1, "b": 2.5})]), result("3.5", name="add"),
        tools=tools)
    add(user("w?"), answer("Let me see.", tool_calls=[call("get_weather", {"city": "A"}),
                                                     call("add", {"a": 1, "b": 2}, "def456XYZ")]),
        result("x"), result("3", "def456XYZ", "add"), tools=tools)
    add(user("w?"), answer("", reasoning_content=THOUGHT, tool_calls=[call("get_weather", {"city": "A"})]),
        result("x"), tools=tools)
    add(system("s"), user("w?"), answer("", reasoning_content=THOUGHT, tool_calls=[call("add", {"a": 1, "b": 2})]),
        result("3", name="add"), answer("It is 3.", reasoning_content=THOUGHT), user("thanks"), tools=tools)
    add(user("w?"), answer("", tool_calls=[call("get_weather", {})]), result("line\nline"), tools=tools)
    add(user("w?"), answer("", tool_calls=[call("get_weather", '{"city": "A"}')]), result("x"), tools=tools)
    add(user("a"), answer("b"), user("c"), answer("d"), user("e"), answer("f"), user("g"))
    add(system("s"), system("t"), user("u"))
    add(user("Hi"), reasoning_effort="high")
    add(user("long " * 20))
    return made


VARIABLES = {"t": " Ab c\u00a0", "u": "Grüße 🙂 \"x\" 'y' <b>\n\t\\", "n": 7, "r": 2.5, "big": 1e16, "none": None,
             "yes": True, "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "empty": "",
             "d": {"b": 1, "a": {"x": [1, 2.0, None, True, "s'"]}, "items": "mine"},
             "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 1}, {"name": "Cy"}]}

# One of each, <nl> for the end of a line: operators, literals, statements, white space, filters, tests, methods, failures.
PIECES = r"""
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456.789 }} {{ big }} {{ 1e15 }} {{ 2.5e-7 }} {{ 100.0 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 'a' ~ 1 ~ none ~ true ~ 2.5 ~ missing ~ l ~ d.a }}
{{ 'a' 'b' "c" }} {{ 'it''s' }} {{ "\n\t\x41\u00e9\\ \q" }}
{{ 'ab' + 'c' }} {{ 'ab' * 3 }} {{ [1] + [2, 3] }} {{ (1, 2) }} {{ [] }} {{ {} }} {{ {'a': 1, 'b': [none]} }}
{{ 'a' + 1 }}
{{ missing + 'a' }}
{{ missing.a }}
{{ missing['a'] }}
{{ none.a is defined }}
{{ missing }}|{{ d.missing }}|{{ t.missing }}|{{ l[9] }}|{{ n.a }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 'a' == 'a' }} {{ 'a' < 'b' }} {{ 1 != 2 }} {{ 1 <= 1 }} {{ 'b' >= 'c' }} {{ true == 1 }}
{{ 1 < 'a' }}
{{ none == missing }} {{ missing == missing2 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ [1] == [2] }}
{{ 'b' in 'abc' }} {{ 2 in l }} {{ 'a' in d }} {{ 'z' not in d }} {{ 1 in missing }} {{ '' in 'a' }} {{ 5 not in l }}
{{ 1 in 5 }}
{{ not true }} {{ true and 0 }} {{ 0 or 'x' }} {{ '' or none }} {{ not missing }} {{ 1 and 2 }} {{ not 1 == 2 }}
{{ 'x' if true else 'y' }} {{ 'x' if false }}|{{ 'x' if 0 else 'y' if none else 'z' }}
{{ -1 }} {{ +1 }} {{ - 2.5 }} {{ -n|abs }} {{ (-n)|abs }} {{ -'a' if false }}
{{ -'a' }}
{{ t[0] }}|{{ t[-2] }}|{{ u[1:4] }}|{{ u[:-10] }}|{{ 'abc'[::-1] }}|{{ l[1:] }} {{ l[::-1] }} {{ l[-2:] }} {{ l[5:] }} {{ l[::2] }} {{ l[2:0:-1] }}
{{ l[::0] }}
{{ l['a'] is defined }} {{ d['a']['x'][1] }} {{ d.a.x.0 }} {{ d['items'] }} {{ l.0 }}
{{ d.items() | list }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for x in d %}{{ x }},{% endfor %}{% for c in 'añb' %}{{ c }}.{% endfor %}
{% for x in none %}{% endfor %}
{% for x in missing %}a{% else %}none{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}no{% endfor %}{% for x in [] %}{% else %}no{% endfor %}
{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for (a, b) in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in l %}{% for y in 'ab' %}{{ loop.index }}{{ loop.cycle('p', 'q') }}{% endfor %}{{ loop.index }}{% endfor %}
{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}
{% if true %}{% set x = 2 %}{% endif %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}in {{ a }}{% endset %}{{ c }}
{% set ns = namespace(x=1) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}
{% set d.a = 1 %}
{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}{{ n }}]{% endmacro %}{{ m(1) }}{{ m(1, 2, c=3) }}{{ m(b='q') }}{{ m(a=m(0)) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}
{% macro m() %}  a  {% endmacro %}{{ m() | trim }}|{{ m()|length }}
{{ nothing() }}
{{ 'a'() }}
{{ t.nothing() }}
  {% if true %}  <nl>  a<nl>  {% endif %}  <nl>b<nl>{%- if true -%}  c  {%- endif +%}  <nl>d{# comment #}<nl>  {# lstrip #}<nl> e {{- ' f ' -}} g<nl>
a<nl>  {%+ if true %}b{% endif %}<nl><nl>
{% raw %}{{ x }}{% if %}{% endraw %} {{ '{{' }} {{ "%}" }} {{ {'a': {'b': 1}}.a.b }}
{% generation %}kept{{ n }}{% endgeneration %}
{{ d | tojson }} {{ u | tojson }} {{ d | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ {} | tojson(indent=4) }}
{{ u | tojson(ensure_ascii=true) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ 1.0 | tojson }} {{ none | tojson }} {{ big | tojson }}
{{ missing | tojson }}
{{ t | trim }}|{{ t | upper }}|{{ t | lower }}|{{ 'hello wORLD' | title }}|{{ 'hELLO' | capitalize }}|{{ 5 | string ~ 'x' }}|{{ 'xxaxx' | trim('x') }}
{{ u | length }} {{ l | length }} {{ d | count }} {{ '' | length }} {{ missing | length }}
{{ 5 | length }}
{{ missing | default('x') }} {{ '' | default('x') }}|{{ '' | default('x', true) }} {{ none | d('x') }} {{ none | default('x', boolean=true) }} {{ missing | default }}
{{ l | join(', ') }} {{ l | join }} {{ people | join('/', attribute='name') }} {{ 'abc' | join('-') }}
{{ l | first }} {{ l | last }} {{ [] | first }}|{{ 'abc' | first }}{{ 'abc' | last }} {{ 'abc' | list }} {{ l | reverse | list }} {{ 'abc' | reverse }}
{{ l | sort }} {{ words | sort }} {{ words | sort(reverse=true) }} {{ words | sort(case_sensitive=true) }} {{ people[:2] | sort(attribute='name') | map(attribute='name') | list }}
{{ words | unique | list }} {{ [1, 1, 2] | unique | list }} {{ l | sum }} {{ [1, 2.5] | sum }} {{ l | min }} {{ l | max }} {{ words | min }} {{ people[:2] | sum(attribute='age') }}
{{ people | map(attribute='age', default=0) | list }} {{ words | map('upper') | list }} {{ ['a', 'b'] | map('replace', 'a', 'c') | join }} {{ d.a | map('trim') | list }}
{{ people | selectattr('age') | map(attribute='name') | join(',') }} {{ people | selectattr('age', 'defined') | list | length }} {{ people | rejectattr('name', 'equalto', 'Bo') | map(attribute='name') | list }}
{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ l | select('gt', 1) | list }} {{ l | select('in', [1, 2]) | list }}
{{ words | map('nonsense') | list }}
{{ l | select('nonsense') | list }}
{{ d | dictsort }} {{ {'B': 1, 'a': 2} | dictsort }} {{ {'B': 1, 'a': 2} | dictsort(case_sensitive=true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ d | items | list }}
{{ '12' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 2.9 | int }} {{ '2.5' | float }} {{ 3 | float }} {{ '7.9' | int }}
{{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 7 | round }} {{ -3 | abs }} {{ -2.5 | abs }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('> ') }}
{{ '<a & "b">' | e }} {{ 'x' | safe }} {{ 'aXbX' | replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }}
{{ x is defined }} {{ n is defined }} {{ x is undefined }} {{ none is none }} {{ n is not none }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ true is boolean }} {{ 1 is boolean }}
{{ n is number }} {{ r is float }} {{ n is integer }} {{ true is number }} {{ true is integer }} {{ t is string }} {{ d is mapping }} {{ l is iterable }} {{ t is iterable }} {{ d is iterable }} {{ n is iterable }} {{ l is sequence }} {{ t is sequence }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 3 is eq 3 }} {{ 3 is equalto(4) }} {{ 3 is gt 2 }} {{ 3 is lt 2 }} {{ 3 is ge 3 }} {{ 3 is le 2 }} {{ 3 is ne 3 }} {{ 3 is in [3] }} {{ 3 is not in [3] }}
{{ 'AB' is upper }} {{ 'ab' is lower }} {{ 'trim' is filter }} {{ 'odd' is test }} {{ range is callable }} {{ n is callable }} {{ none is sameas none }}
{{ 'a' is odd }}
{{ t.strip() }}|{{ t.lstrip() }}|{{ t.rstrip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'ünü'.strip('ü') }}|{{ '\u2003a\u3000'.strip() }}|
{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a\nb\r\nc\n'.splitlines() }}
{{ 'a'.split('') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('') }} {{ 'a'.startswith('ab') }}
{{ 'aBc'.upper() }} {{ 'aBc'.lower() }} {{ 'ab cd'.title() }} {{ 'aBC'.capitalize() }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '', 1) }} {{ ','.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ '1a'.isdigit() }}
{{ ','.join([1]) }}
{{ 'añbña'.find('ñ') }} {{ 'añbña'.rfind('ñ') }} {{ 'abc'.find('z') }} {{ 'banana'.count('an') }} {{ l.count(1) }} {{ l.index(2) }} {{ 'abc'.index('c') }} {{ 'prefix-a'.removeprefix('prefix-') }} {{ 'a.x'.removesuffix('.x') }}
{{ 'a'.index('b') }}
{{ l.index(9) }}
{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.keys() | list }} {{ d.values() | list | length }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }}
{{ range('a') }}
{{ range(1000000) }}
{{ l.append(4) }}
{{ raise_exception('no: ' ~ n) }}
{{ t | nonsense }}
{{ t is nonsense }}
{% nonsense %}
{% include 'x' %}
{% import 'x' as y %}
{% if true %}
{% if true %}{% endfor %}
{{ 'open
{{ (1 }}
{{ 1 + }}
{{ }}
{% for in l %}{% endfor %}
{# open
{{ 1 ? 2 }}
{{ ''.__class__ }}|{{ ''.__class__.__mro__ }}
{{ d.__init__ is defined }}
{{ u }}
{{ d.a.x }} {{ [u] }} {{ [true, none, 1.5, missing] }}
{{ strftime_now('%Y') is string }}
{{ 10000000000 * 10 }} {{ 0x }}
{{ (1,) }} {{ () }} {{ (1, 2) == [1, 2] }} {{ (1,) == (1,) }} {{ (1, 2)[:1] }} {{ true + 1 }} {{ true ~ '' }}
"""

SETS = {"conversations": conversations(), "pieces": [VARIABLES]}


def texts_of(text, variables):
    env = environment()
    try:
        template = env.from_string(text)
    except jinja2.exceptions.TemplateError:
        return [None] * len(variables)
    made = []
    for one in variables:
        try:
            made.append(template.render(**TOKENS, **one))
        except Exception:  # whatever Python makes of it: the text cannot be made
            made.append(None)
    return made


def case(name, text, variables):
    return {"name": name, "template": text, "variables": variables,
            "texts": texts_of(text, SETS[variables])}


def case_of(path):
    with open(path, newline="") as file:
        return case(os.path.basename(path), file.read(), "conversations")


def write(file, cases):
    json.dump({"variables": SETS, "cases": cases}, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
    file.flush()


def check(program, paths):
    equal = total = 0
    print("| template | equal | of | both refuse |\n|---|--:|--:|--:|")
    for path in paths:
        one = case_of(path)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            write(file, [one])
            done = subprocess.run([program, file.name], capture_output=True, text=True)
        told = int((done.stdout.split() or ["0"])[0])
        equal += told
        total += len(one["texts"])
        print(f"| {one['name']} | {told} | {len(one['texts'])} | {one['texts'].count(None)} |")
        if done.returncode != 0:
            print(done.stderr.strip()[-400:], file=sys.stderr)
    print(f"{equal} of {total} conversations with {len(paths)} templates are equal")
    sys.exit(equal != total)


def main():
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2], sys.argv[3:])
    cases = [case_of(path) for path in sorted(glob.glob(os.path.join(HERE, "*.jinja")))]
    pieces = [line.replace("<nl>", "\n") for line in PIECES.strip("\n").split("\n")]
    cases += [case(f"piece {i}", text, "pieces") for i, text in enumerate(pieces)]
    with open(os.path.join(HERE, "cases.json"), "w") as file:
        write(file, cases)


main()
