#!/usr/bin/env python3
"""Compares examples/chat.h and jinja.h with Jinja, as transformers sets it. Needs jinja2 and build/test_chat:

    python3 tests/golden/chat.py golden    writes the lines without a "format" of tests/golden/chat.jsonl: chats rendered
                                           by Jinja with the templates of this file, which stand in the first line of
                                           each; keeps the others, rendered by published templates of these formats
    python3 tests/golden/chat.py FOLDER N  renders N random chats with each template FOLDER/*.jinja both ways and prints
                                           the differences; such templates are not part of this repository
    python3 tests/golden/chat.py tokens    writes tests/golden/chat_tokens.jsonl: texts of build/test_chat in tokens of
                                           the tokenizers package; run it when tests/golden/tokenizer/* have changed

chat.h refuses a chat if the template omits a message; Jinja renders it."""
import datetime
import glob
import json
import os
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

WORDS = ["hi", "  two words ", "", "\n", "a\nb\n\n", " lead", "trail ", "{{x}}", "ü 你好 é", "<|im_end|>", "tab\t",
         "\r\nx\x0b", "\u00a0\u2003x\u3000", "\x1cy\x1f", "[INST] z", "</s>", "1 + 2 = 3.", "\u200b", "a</think>\nb",
         "<tool_response>q</tool_response>", "<think>\nhm\n</think>\n\nyes", "'q'\"", "\\n\\"]

# Own templates with the constructs of published ones, each named after the models whose constructs it has.
TEMPLATES = {
    "tools as in Hermes": """{{ bos_token }}{%- macro kind(p) %}
{%- set known = {"string": "str", "number": "float", "integer": "int"} %}
{%- if known[p.type] is defined %}{{- known[p.type] }}
{%- elif p.type is iterable and p.type is not string and p.type is not mapping %}
{{- "Union[" ~ p.type | join(", ") ~ "]" }}{%- else %}{{- "Any" }}{%- endif %}{%- endmacro %}
{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}
{%- for t in tools %}{%- if t.function is defined %}{%- set t = t.function %}{%- endif %}
{{- '\\n{"name": ' ~ t.name | tojson ~ ', "args": "' }}
{%- for name, p in t.parameters.properties | items %}{{- name + ": " + kind(p) }}
{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- '"}' }}
{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if not loop.previtem or loop.previtem.role != "tool" %}{{- '<|im_start|>tool' }}{%- endif %}
{{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif m.role == 'assistant' and m.tool_calls is defined %}
{{- '<|im_start|>' + m.role }}{%- for c in m.tool_calls %}
{%- set f = c.function %}{{- '\\n<tool_call>\\n' + {'name': f.name, 'arguments': f.arguments} | tojson + '\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "reasoning as in Qwen3 and QwQ": """{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi and m.role == "user" and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == "assistant" %}
    {%- set reasoning = '' %}{%- set content = m.content if m.content is string else '' %}
    {%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if loop.index0 > ns.last and (loop.last or reasoning) %}{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
    {{- content }}
    {%- for c in m.tool_calls or [] %}
        {%- if c.function %}{%- set c = c.function %}{%- endif %}
        {{- '\\n<tool_call>\\n{"name": "' }}{{- c.name }}{{- '", "arguments": ' }}
        {%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
    {%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == "tool" %}{{- '<|im_start|>user\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}""",
    "blocks as in DeepSeek-R1": """{% if not add_generation_prompt is defined %}
  {% set add_generation_prompt = false %}
{% endif %}
{%- set ns = namespace(tool=false, first=true, system='') -%}
{%- for m in messages -%}
  {%- if m['role'] == 'system' %}{% set ns.system = m['content'] %}{% endif -%}
{%- endfor -%}{{bos_token}}{{ns.system}}
{%- for m in messages -%}
  {%- if m['role'] == 'user' -%}{%- set ns.tool = false -%}{{'<User>' + m['content']}}{%- endif -%}
  {%- if m['role'] == 'assistant' and m['tool_calls'] -%}
    {%- for c in m['tool_calls'] -%}
      {{ ('<Assistant><calls>' if ns.first else '\\n') + '<call>' + c['type'] + '<sep>' + c['function']['name'] + '\\n```json\\n' + c['function']['arguments'] | tojson + '\\n```' }}
      {%- set ns.first = false -%}
    {%- endfor %}</calls>{{ eos_token -}}
  {%- elif m['role'] == 'assistant' and m['content'] is not none -%}
    {%- set content = m['content'] -%}
    {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif -%}
    {{ ('<outputs end>' if ns.tool else '<Assistant>') + content + eos_token }}{%- set ns.tool = false -%}
  {%- endif -%}
  {%- if m['role'] == 'tool' %}{% set ns.tool = true %}{{'<output>' + m['content'] + '</output>'}}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.tool %}{{'<Assistant><think>\\n'}}{% endif %}""",
    "date and checks as in Mistral-Small": """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default = "You are a model.\\
The date is " + today + ".\\n\\
Say \\"no\\" (e.g. 'a' => 'b')" %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = default %}{%- set rest = messages %}{%- endif %}
{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for m in rest %}
    {%- if not (m.role == "tool" or (m.tool_calls is defined and m.tool_calls is not none)) %}
        {%- if (m["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate: " ~ m.role) }}
        {%- endif %}{%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for m in rest %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and (m == users[-1]) %}{{- "[TOOLS][" }}
            {%- for t in tools %}{%- set t = t.function %}{{- '{"type": "function", "function": {' }}
                {%- for key, value in t.items() if key != "return" %}
                    {%- if value is string %}{{- '"' + key + '": "' + value + '"' }}
                    {%- else %}{{- '"' + key + '": ' + value|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}{{- "}}" }}{{- ", " if not loop.last else "]" }}
            {%- endfor %}{{- "[/TOOLS]" }}
        {%- endif %}{{- "[INST]" + m["content"] + "[/INST]" }}
    {%- elif m.tool_calls is defined %}{{- "[CALLS][" }}
        {%- for c in m.tool_calls %}{%- set out = c.function|tojson %}{{- out[:-1] }}
            {%- if not c.id is defined or c.id|length != 9 %}{{- raise_exception("bad id") }}{%- endif %}
            {{- ', "id": "' + c.id[-9:] + '"}' }}{{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif m["role"] == "assistant" %}{{- m["content"] + eos_token }}
    {%- elif m["role"] == "tool" %}{{- '[RESULTS]{"content": ' + m.content|string + ', "id": "' + m.tool_call_id + '"}[/RESULTS]' }}
    {%- endif %}
{%- endfor %}
""",
    "calls with a body as in MiniCPM3": """{%- macro field(name, p) -%}
{{ name | title }}: {{ p.type | upper if p.type is string else 'any' }}{{ caller(name) if caller is defined else '' }}
{%- endmacro %}
{%- for t in tools or [] %}{% for name, p in (t.function.parameters.properties | default({})).items() %}
{%- call(n) field(name, p) %} # {{ n }} of {{ t.function.name }}{% endcall %};
{% endfor %}{% endfor %}
{%- for m in messages -%}
{% if m.role == 'user' %}<user>{{ m.content | trim }}{% else %}<AI>{{ m.content | default('', true) | trim }}{{ eos_token }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<AI>{% endif %}
""",
    "as Phi-4 and SmolLM3": """{# a comment #}
{%- set mode = "/no_think" if messages[0].content is defined and "/no_think" in messages[0].content else "/think" -%}
{%- if messages[0].role == "system" -%}
    {%- set given = messages[0].content.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{ "<|system|>\\nDate: " ~ strftime_now("%d %B %Y") ~ "\\n" ~ mode ~ "\\n" }}
{{- given if given is defined else "default" }}<|end|>
{% if tools %}{% set shown = [] %}{% for t in tools %}{% set shown = shown + [t.function | tojson(indent=2)] %}{% endfor %}
{{ tools | map(attribute='function') | map('tojson') | join(' | ') ~ tools | tojson(indent=4) }}
{%- for t in tools %}<|tool|>{{ t['function'] | tojson(ensure_ascii=true, separators=(',', ':')) }}<|/tool|>{% endfor %}{% endif %}
{%- for m in messages if m.role != 'system' %}
{%- if m.role == 'tool' %}{{ '<|tool_response|>' + (m['content'] | tojson) + '<|end|>' -}}
{% else %}<|{{ m.role }}|>
{% generation %}{{ m.content | default('', boolean=True) if mode == '/think' else (m.content or '').split('</think>') | last }}
{%- for c in m.tool_calls %}<|call|>{{ c.function.arguments }}{% endfor %}<|end|>
{% endgeneration %}{% endif %}
{%- endfor %}
{{- '<|assistant|>\\n' if add_generation_prompt else eos_token }}""",
    "expressions": """{% set t = (1, 'a', none, true, '2.50' | float, -3) %}{{ t }}{{ [t, {'k': 'v"', 1: "it's"}] }}{{ t[1:3] }}{{ t[::-1] }}{{ t[-9:-1] }}{{ t[4:2] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 * 3 + 4 - 1 }} {{ 'ab' * 2 }} {{ 1 < 2 }} {{ 1 == '1' | float }} {{ 'b' >= 'a' }} {{ 'a' not in 'b' }} {{ none and 1 or 2 }} {{ not 1 in [1] }}
{%- set a, b = 'x', 'y' %}{{ a ~ b ~ 1 ~ none }}{{ 'é你'[1] }}{{ 'é你'[-2:] }}{{ 'é你' | length }}{{ 'a' 'b' }}{{ "\\q\\t'" }}
{{- [3, 1, 2] | sort | join(',') }}{{ ['b', 'A'] | sort | first }}{{ [{'k': 2}, {'k': 1}] | sort(attribute='k') }}{{ ['b', 'A'] | sort(true) }}{{ {'b': 1, 'A': 2} | dictsort }}{{ [1, 2, 3] | sum if false else '' }}
{{ ['a', 'A', 1, true, 'b', 'a'] | unique | list }}{{ messages | map(attribute='role') | list }}{{ 'yes' if messages | select else 'no' }}
{%- for k in 'ab' %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.length }}{{ k }}{% if loop.first %}{% continue %}{% endif %}!{% break %}{% endfor %}
{%- for i in range(3, 9, 2) if i != 5 %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}{% for x in [] %}{% endfor %}
{%- set ns = namespace(n=0, d={'a': [1, 2]}) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set b = i %}{% endfor %}{{ ns.n }}{{ b }}{{ ns.d['a'][-1] }}
{%- set caught %} block {{ a }} {% endset %}{{ caught | trim | upper }}{{ caught | length }}
{{ 'a,b,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.split(sep=',', maxsplit=0) }}{{ 'aXbX'.replace('X', 'yy') }}
{{ 'ab'.startswith('a') }}{{ 'ab'.endswith('abc') }}{{ 'x{}{} é'.format('a', [2]) }}{{ 'xxabxx'.strip('x') }}{{ 'hello wORLD-x'.title() }}{{ 'hello wORLD-x' | title }}{{ 'hELLO'.capitalize() }}
{{ '12' | int + 1 }}{{ 'x' | int(7) }}{{ '1.5' | float }}{{ 'nan' | float }}{{ ' -Infinity' | float }}{{ 'nan' | int(3) }}{{ '0x1f' | float }}{{ '.1' | float + '.2' | float }}{{ '1e-7' | float }}{{ 'a' is in(['a']) }}{{ 1 is eq(true) }}{{ 1 is integer }}{{ 1 is not float }}
{{ nothing is defined }}{{ nothing | default('d') }}{{ nothing }}{{ '' or 'o' }}{{ 0 and 1 }}{{ (1 if 0) is undefined }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys() | list }}{{ 'items' in {'items': 1} }}
{{ 'a\\nb\\n\\nc' | indent(2) }}{{ 'a\\nb' | indent(first=true) }}{{ [1, 2] + [3] }}{{ [[1], 'x'] | tojson }}{{ messages | selectattr('role', 'ne', 'user') | list | length }}{{ messages | rejectattr('nope') | list | length }}
{% macro f(x, y='d', z=x) %}<{{ x }}{{ y }}{{ z }}>{% endmacro %}{{ f(1) }}{{ f(1, z=3, y=2) }}{{ f('a') | upper }}{{ [2, 1] | min }}{{ {'b': 1, 'a': 2} | last }}{{ range(2) | list }}
{%- macro g(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ g() }}{{ g(1, 2, 3, y=4) }}{{ g(*[1, 2], **{'z': 3}) }}{{ [f, g][0](*'ab') }}
{%- filter trim | upper %}  filtered {{ a }} {% endfilter %}{{ '<b>' | safe ~ '<' }}{{ '<b>' | safe + "<'" }}{{ '&"' + '<b>' | safe + 'x>' }}{{ ('<' | safe) ~ 1 + '>' }}
  {%+ if true %} kept {% endif +%}
  {#- gone -#}   x  {{- ' y ' -}}  z {% if true -%}  w {%- endif %}
    {% set x = dict(a=1) %}
{{ x }} {{ messages[0].content }}
""",
}
REFUSED = [("{% for m in messages %}{{ m.content | nl2br }}{% endfor %}", "unknown filter 'nl2br'"),
           ("{{ messages[0].content.encode() }}", "unknown method 'encode' of a string"),
           ("{{ cycler('a') }}", "unknown function 'cycler'"), ("{{ 1 is sameas(1) }}", "unknown test 'sameas'"),
           ("a\n{% include 'x' %}", "line 2, column 4: unknown tag {% include %}"), ("{{ 2 ** 3 }}", "unknown operator **"),
           ("{% if x %}", "needs a closing one: elif else endif"), ("{{ 'a }}", "the string is not closed"),
           ("{{ 'a' + 1 }}", "arithmetic: not possible with a string"), ("{{ x.y.z }}", "'x' is undefined"),
           ("{{ 1 // 0 }}", "division by zero"), ("{{ raise_exception('no') }}", "refuses the chat: no"),
           ("{{ 'é' | upper }}", "upper and lower case are known for ASCII only, not for U+00E9"),
           ("{{ messages | map('upper') | tojson }}", "tojson: not possible with a generator"), ("{{ 1 / 2 }}", "unknown operator /"), ("{{ 10.0 }}", "unknown: a number with a point"),
           ("{{ {'a': 1}.keys() }}", "printing: not possible with a generator"), ("{{ range(2) | tojson }}", "tojson: not possible"), ("{% set a.b = 1 %}", "set of an attribute"),
           ("{{ {} | tojson(indent='x') }}", "an argument that must be a whole number: not possible with a string"), ("{{ loop.index }}", "'loop' is undefined"),
           ("{% for x in [1] %}{{ loop.depth }}{% endfor %}", "unknown attribute of a loop: depth"), ("{{ }}", "expected an expression"),
           ("{% macro f() %}{% endmacro %}{{ f(*[1]) }}", "the macro f takes other arguments"), ("{{ [1] | tojson(sort_keys=true) }}", "unknown: 1 arguments of tojson"),
           ("{{ 'abc'[::2] }}", "unknown: a slice with a step other than [::-1]"), ("{{ '{x}'.format(1) }}", "unknown: format with a brace"),
           ("{{ 1 < 2 < 3 }}", "unknown: a chain of comparisons"), ("{{ '\\x41' }}", "unknown escape \\x"), ("{{ messages | select | length }}", "length: not possible with a generator; apply the filter list"), ("{{ 9223372036854775807 }}", "a number of at most 18 digits"),
           ("{{ '1f' | int(0, 16) }}", "unknown: 2 arguments of int")]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Gets \"it\" <now> & é.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "n": {"type": ["integer", "null"], "default": 3},
                                     "l": {"type": "array", "items": {"type": "number"}}}, "required": ["city"]},
    "return": {"type": "string"}}}, {"type": "function", "function": {"name": "g", "parameters": {}}}]


class Generation(jinja2.ext.Extension):
    """Implements {% generation %}, which marks answers and renders nothing."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """Creates an environment with the settings of transformers, and with the date of chat.h."""
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime
    return env


def render(template, line):
    """Returns the rendered chat, or None if the template refuses it."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in line["messages"]]
    for m in messages:  # as transformers
        if "reasoning_content" in m:
            m.setdefault("thinking", m["reasoning_content"])
    try:
        return template.render(messages=messages, tools=line.get("tools"), documents=None, bos_token="<BOS>",
                               eos_token="<EOS>", add_generation_prompt=line["asks"])
    except Exception:  # the template's error, or Python's for a chat that it does not expect
        return None


def chats(count, seed):
    """Returns random chats with and without tools: most alternate between user and assistant, some do not."""
    draw = random.Random(seed)

    def said():
        return "".join(draw.choice(WORDS) for _ in range(draw.randint(0, 3)))

    def answer():
        extra = {"reasoning_content": said()} if draw.random() < 0.3 else {}
        return dict({"role": "assistant", "content": said()}, **extra)

    def call(k):
        return {"type": "function", "id": "call%05d" % k, "function": {
            "name": draw.choice(["weather", "g"]),
            "arguments": draw.choice([{"city": "Bonn", "n": 1, "x": 1.5, "b": True, "l": [1, "a", None]}, {}, {"city": said()}])}}

    out = []
    for i in range(count):
        tools, messages = draw.random() < 0.4, []
        if draw.random() < 0.4:
            messages.append({"role": "system", "content": said()})
        for _ in range(draw.randint(1, 3)):
            messages.append({"role": "user", "content": said()})
            if tools and draw.random() < 0.6:
                calls = [call(draw.randint(0, 99999)) for _ in range(draw.randint(1, 2))]
                messages.append({"role": "assistant", "content": draw.choice([None, "", said()]), "tool_calls": calls})
                messages += [{"role": "tool", "name": c["function"]["name"], "tool_call_id": c["id"], "content": said()}
                             for c in calls]
            messages.append(answer())
        if draw.random() < 0.4:
            messages.pop()
        if draw.random() < 0.05:
            draw.shuffle(messages)
        out.append({"messages": messages, "tools": TOOLS if tools else None, "asks": draw.random() < 0.5})
    return out


def ours(lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(["build/test_chat", "render"], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n")[:len(lines)]]


def compare(folder, count):
    """Prints the templates of a folder for which chat.h and Jinja differ."""
    equal = refused = omitted = differ = 0
    for path in sorted(glob.glob(folder + "/*.jinja")):
        text = open(path, newline="").read()
        template = environment().from_string(text)
        lines = [dict(line, template=text) for line in chats(count, len(text))]
        bad = 0
        for line, got in zip(lines, ours(lines)):
            want = render(template, line)
            equal += got == want and want is not None
            refused += got is None and want is None
            omitted += got is None and want is not None
            bad += got is not None and got != want
        differ += bad
        if bad > 0:
            print(os.path.basename(path), bad)
    print("%d equal, %d refused by both, %d by chat.h only, %d differ" % (equal, refused, omitted, differ))


TOKENS = [("smollm2", ["chatml"], "<|endoftext|>", "<|endoftext|>"),
          ("llama3", ["llama3"], "<|begin_of_text|>", "<|eot_id|>"), ("gemma", ["gemma", "gemma"], "<bos>", "<eos>"),
          ("mistral", ["mistral"], "<s>", "</s>"), ("llama2", ["zephyr", "chatml"], "<s>", "</s>")]
PLAIN = ["the memory", "A model, 2024!", " it's", "groß 模型 ", "1000", "\n\nfour", "память", "  two", "x\n", "user"]


def tokens():
    """Writes chats whose answers can be tokenised separately, and that contain no special tokens in their
    text."""
    from tokenizers import Tokenizer
    draw = random.Random(4)
    with open("tests/golden/chat_tokens.jsonl", "w") as to:
        for folder, names, bos, eos in TOKENS:
            tokenizer = Tokenizer.from_file("tests/golden/tokenizer/%s/tokenizer.json" % folder)
            for name in names:
                def encode(chats):
                    lines = [{"format": name, "messages": m, "asks": a} for m, a in chats]
                    texts = [t.replace("<BOS>", bos).replace("<EOS>", eos) for t in ours(lines)]
                    return [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]

                for i in range(8):
                    tries, apart = 0, False
                    while not apart:  # until no token spans the border before an answer
                        tries += 1
                        roles = ["user", "assistant", "user", "assistant", "user"][:1 + i % 5 if tries < 300 else 1]
                        messages = [{"role": r, "content": "".join(draw.choice(PLAIN) for _ in range(draw.randint(1, 3)))}
                                    for r in roles]
                        for m in messages:
                            if m["role"] == "assistant":
                                m["content"] = m["content"].lstrip() or "yes"
                        asks = i % 2 == 0
                        begins = [(messages[:k], True) for k in range(1, len(messages), 2)]
                        ids, *before = encode([(messages, asks)] + begins)
                        apart = all(ids[:len(x)] == x for x in before)
                    to.write(json.dumps({"folder": folder, "format": name, "bos": bos, "eos": eos, "messages": messages,
                                         "asks": asks, "ids": ids}, ensure_ascii=False) + "\n")


def golden():
    """Renders chats with the templates of this file. Leaves out chats of which a message is omitted."""
    path = "tests/golden/chat.jsonl"
    kept = [line for line in open(path) if "format" in json.loads(line)]
    with open(path, "w") as to:
        to.writelines(kept)
        for i, text in enumerate(TEMPLATES.values()):
            template = environment().from_string(text)
            lines = chats(60, 10 + i)
            answers = sorted(zip(lines, ours([dict(line, template=text) for line in lines])), key=lambda x: x[1] is None)
            used = 0
            for line, got in answers:
                want = render(template, line)
                if used < (1 if list(TEMPLATES)[i] == "expressions" else 9) and (got is not None or want is None):
                    line = dict({k: v for k, v in line.items() if v is not None}, text=want)
                    to.write(json.dumps(dict(line, template=text) if used == 0 else line, ensure_ascii=False) + "\n")
                    used += 1
        for text, says in REFUSED:
            line = {"messages": [{"role": "user", "content": "a"}], "asks": False}
            to.write(json.dumps(dict(line, template=text, text=None, says=says), ensure_ascii=False) + "\n")


if sys.argv[1] == "tokens":
    tokens()
elif sys.argv[1] == "golden":
    golden()
else:
    compare(sys.argv[1], int(sys.argv[2]))
