#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_templates.json: conversations in many chat templates, as transformers renders them.

The templates are those of the reference data's models (SHARED), those of --chat-template, and others that use what jinja has and chat templates
need: macros, namespaces, filters, slices, loop variables, tests, white space control. null stands for an error.
    pip install transformers==5.24.0 jinja2==3.1.6
    make_chat_goldens.py SHARED > ../../golden/chat_templates.json
"""
import hashlib
import json
import pathlib
import sys

try:
    import jinja2
    import transformers
    from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template
except ImportError as error:
    sys.exit(f"make_chat_goldens: skipped, {error}")

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
MODELS = ["tiny-mistral", "tiny-qwen2", "tiny-qwen3"]
TEMPLATES = {
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "alternating": """{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}""",
    "system_first": """{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0].content | trim -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = 'Be helpful.' -%}{%- set rest = messages -%}{%- endif -%}
<<SYS>>{{ system }}<</SYS>>
{% for m in rest %}{{ loop.index }}/{{ loop.length }} {{ m.role }}: {{ m.content }}{{ '\\n' if not loop.last }}{% endfor %}""",
    "namespace": """{% set ns = namespace(last_user=-1, count=0) %}
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last_user = loop.index0 %}{% set ns.count = ns.count + 1 %}{% endif %}{% endfor %}
{{ ns.count }} questions, last at {{ ns.last_user }}
{%- for m in messages %}{{ '\\n>' if loop.index0 == ns.last_user else '\\n ' }}{{ m.content }}{% endfor %}""",
    "macros": """{% macro turn(role, text, end='<|end|>') %}<|{{ role }}|>{{ text }}{{ end }}
{% endmacro %}{% macro wrap() %}[{{ caller() }}]{% endmacro %}
{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}{% call wrap() %}{{ messages | length }}{% endcall %}{{ turn('assistant', '', end='') if add_generation_prompt }}""",
    "reverse_and_slices": """{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}|{% for m in messages | reverse %}{{ m.role[:2] }}{% endfor %}|
{{- messages[-1].content[::-1] }}|{{ messages[1:3] | map(attribute='role') | join(',') }}|{{ messages[-1]['content'][2:-1] }}""",
    "loop_variables": """{% for m in messages %}{{ loop.index }},{{ loop.index0 }},{{ loop.revindex }},{{ loop.revindex0 }},{{ loop.first }},{{ loop.last }},{{ loop.length }},{{ loop.cycle('a', 'b') }},{{ loop.previtem.role if loop.previtem is defined }},{{ loop.nextitem.role if loop.nextitem is defined }},{{ loop.changed(m.role) }};{% endfor %}""",
    "is_tests": """{% for m in messages %}{{ m.content is string }},{{ m.content is mapping }},{{ m.content is iterable }},{{ m.content is sequence }},{{ m.name is defined }},{{ m.missing is undefined }},{{ m.role is in ['user', 'system'] }},{{ loop.index is odd }},{{ loop.index is divisibleby 3 }},{{ m.tool_calls is none }},{{ tools is none }},{{ true is boolean }},{{ 3 is number }},{{ m.role is eq('user') }};{% endfor %}""",
    "filters": """{% for m in messages if m.content is string %}{{ m.content | trim | upper | replace('A', '4') }}/{{ m.content | lower | title }}/{{ m.content | length }}/{{ m.role | capitalize }}/{{ m.content | first | default('-', true) }}/{{ m.content | wordcount }}/{{ m.content | truncate(9) }}/{{ m.content | indent(2) }}/{{ m.content | e }};{% endfor %}""",
    "list_filters": """{{ messages | map(attribute='role') | unique | sort | join('+') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | sum }} {{ [1, 2, 3] | max }} {{ messages | groupby('role') | map(attribute='0') | list }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'k': 'v'} | items | list }}""",
    "tojson": """{{ messages | tojson }}
{{ messages[0] | tojson(indent=2) }}{{ {'b': '<&>', 'a': [1, 2.5, none, true]} | tojson }}{{ {'z': 1, 'a': '\u00e9'} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}""",
    "tools": """{% if tools %}Tools:{% for tool in tools %}

{{ tool | tojson(indent=4) }}{% endfor %}
{% for tool in tools %}{% set f = tool.function if tool.function is defined else tool %}{{ f.name }}({% for name, p in f.parameters.properties.items() %}{{ name }}: {{ p.type }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}

{% endif %}{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}<call>{{ call.function.name }} {{ call.function.arguments | tojson if call.function.arguments is mapping else call.function.arguments }}</call>{% endfor %}{% elif m.role == 'tool' %}<result id={{ m.tool_call_id }}>{{ m.content }}</result>{% else %}{{ m.role }}: {{ m.content }}{% endif %}
{% endfor %}""",
    "header_ids": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "date": """{% if not date_string is defined %}{% if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}Today: {{ date_string }}{% for m in messages %} {{ m.content }}{% endfor %}""",
    "content_parts": """{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}{% endfor %}{% endif %};{% endfor %}""",
    "thinking": """{% for m in messages %}{% if m.role == 'assistant' %}{% set text = m.content %}{% if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}<a>{% if m.reasoning_content %}<think>{{ m.reasoning_content.strip() }}</think>{% endif %}{{ text }}</a>{% else %}<{{ m.role[0] }}>{{ m.content }}</{{ m.role[0] }}>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% else %}<think>\n{% endif %}{% endif %}""",
    "string_methods": """{% for m in messages if m.content is string %}{{ m.content.strip() }}|{{ m.content.split(' ')[0] }}|{{ m.content.startswith('W') }}|{{ m.content.endswith('.') }}|{{ m.content.replace('a', 'o') }}|{{ m.content.find('e') }}|{{ m.content.upper() }}|{{ 'x'.join(['1', '2']) }}|{{ '%s-%d' % (m.role, 3) }}|{{ '{}:{}'.format(m.role, 2) }}|{{ m.content.title() }};{% endfor %}""",
    "white_space": """  {%- for m in messages %}
    {%+ if m.role == 'user' %}
        user: {{- ' ' ~ m.content -}}
    {% else %}
  other: {{ m.content }}
    {%- endif +%}
  {% endfor -%}

  end
""",
    "comments_and_raw": """{# a comment #}{% raw %}{{ not a variable }}{% endraw %}{#- another -#}
{% for m in messages %}{{ m.content }}{# in between #};{% endfor %}""",
    "arithmetic": """{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 2 ** 5 }} {{ -3 | abs }} {{ 2.567 | round(1) }} {{ '3' | int + 4 }} {{ 'a' ~ 1 ~ none }} {{ 1 < 2 < 3 }} {{ not (true and false) or false }} {{ [1] + [2] }} {{ 'ab' * 2 }} {{ (1, 2)[1] }} {{ 3 if messages else 4 }}""",
    "break_and_continue": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }} {% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}""",
    "else_of_loop": """{% for m in messages if m.role == 'nobody' %}{{ m }}{% else %}none{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}""",
    "nested_loops": """{% for m in messages %}{% set outer = loop %}{% for c in m.role[:2] %}{{ outer.index }}.{{ loop.index }}{{ c }} {% endfor %}{% endfor %}""",
    "recursive_loop": """{% for item in [{'n': 'a', 'c': [{'n': 'b', 'c': []}]}] recursive %}{{ item.n }}({{ loop(item.c) }}){% endfor %}{{ messages | length }}""",
    "with_and_set_block": """{% with a = 1, b = messages | length %}{{ a + b }}{% endwith %}{% set text %}<{{ messages[0].content }}>{% endset %}{{ text | upper }}{% filter lower %}ABC{{ messages[-1].role }}{% endfilter %}""",
    "generation_tag": """{% for m in messages %}{% if m.role == 'assistant' %}<|a|>{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}<|o|>{{ m.content }}{% endif %}
{% endfor %}""",
    "undefined": """{{ nothing }}[{{ messages[0].nothing }}]{{ 'yes' if nothing else 'no' }}{{ nothing | default('d') }}{{ messages[99] | default('x') }}{{ messages[0].get('nothing', 'y') }}""",
    "undefined_operation": """{{ messages[0].nothing.more }}""",
    "type_error": """{{ 'a' + 1 }}""",
    "mutation": """{{ messages.append(1) }}""",
    "internals": """{{ ''.__class__ }}""",
    "syntax_error": """{% for m in messages %}{{ m.content }""",
    "role_map": """{% set roles = {'system': 'S', 'user': 'U', 'assistant': 'A', 'tool': 'T'} %}{% for m in messages %}{{ roles[m.role] or raise_exception('Unknown role: ' + m.role) }}{{ roles.get(m.role, '?') }}{% endfor %}""",
    "dict_global": """{% set d = dict(a=1, b=2) %}{{ d.a }}{{ d | length }}{{ range(3) | list }}{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}""",
    "special_tokens": """{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ pad_token }}{{ unk_token }}{{ cls_token }}""",
    "kwargs": """{{ style | default('plain') }} {{ enable_thinking }} {{ documents | length if documents }}{% for m in messages %} {{ m.name if m.name else '-' }}{% endfor %}""",
    "no_generation_prompt": """{% for m in messages %}{{ m.content }}{{ '\\n' }}{% endfor %}assistant:""",
    "long_system": """{% if messages[0]['role'] == 'system' %}{% set offset = 1 %}{% else %}{% set offset = 0 %}{% endif %}{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == offset) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' + message.content | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather <now> & later", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
TURNS = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "Four."},
         {"role": "user", "content": " And caf\u00e9 \u4f60\u597d \U0001f642?\n"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}]}
REQUESTS = [
    {"messages": TURNS[:1], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "Be brief.  "}] + TURNS, "add_generation_prompt": True},
    {"messages": TURNS[:2]},
    {"messages": TURNS[:2], "continue_final_message": True},
    {"messages": TURNS[:1] + [{"role": "assistant", "content": "Well, "}], "continue_final_message": True},
    {"messages": TURNS[:1] + [CALL, {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 3}"}], "tools": [TOOL],
     "add_generation_prompt": True},
    {"messages": TURNS[:1] + [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes", "reasoning_content": "hm"}]
     + TURNS[2:], "add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "image"},
                                                              {"type": "text", "text": "b"}]}],
     "kwargs": {"style": "rich", "date_string": "1 Jan 2030"}, "documents": [{"title": "t", "text": "x"}]},
    {"messages": []},
]


def rendered(template, request):
    try:
        texts, _ = render_jinja_template(
            [_normalize_chat_messages(json.loads(json.dumps(request["messages"])))], tools=request.get("tools"),
            documents=request.get("documents"), chat_template=template,
            continue_final_message=request.get("continue_final_message", False),
            add_generation_prompt=request.get("add_generation_prompt", False), **SPECIAL, **request.get("kwargs", {}))
        return texts[0]
    except Exception:  # a template raises whatever Python raises
        return None


def ids_digest(tokenizer, template, request, text):
    """Of the ids of apply_chat_template, which takes no empty conversation."""
    if text is None:
        return None
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if request["messages"]:
        applied = tokenizer.apply_chat_template(
            request["messages"], tools=request.get("tools"), documents=request.get("documents"), chat_template=template,
            continue_final_message=request.get("continue_final_message", False), return_dict=False,
            add_generation_prompt=request.get("add_generation_prompt", False), **SPECIAL, **request.get("kwargs", {}))
        assert applied == ids
    return hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode()).hexdigest()[:16]


def main():
    shared = pathlib.Path(sys.argv[1])
    configs = {name: json.loads((shared / "models" / name / "tokenizer_config.json").read_text()) for name in MODELS}
    tokenizer = transformers.AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen2")  # of the ids
    files = sorted((pathlib.Path(__file__).parents[3] / "engine" / "chat" / "templates").glob("*.jinja"))
    templates = {name: config["chat_template"] for name, config in configs.items()} | TEMPLATES
    templates |= {f"--chat-template {file.stem}": file.read_text() for file in files}
    golden = {"generator": "make_chat_goldens.py", "transformers": transformers.__version__, "jinja2": jinja2.__version__,
              "special": SPECIAL, "requests": REQUESTS, "now": 1700000000, "templates": {}}
    for name, template in templates.items():
        dated = template.replace("strftime_now('%d %b %Y')", "'14 Nov 2023'")  # the day of "now"
        texts = [rendered(dated, r) for r in REQUESTS]
        golden["templates"][name] = {"source": template, "rendered": texts, "ids_sha256": [
            ids_digest(tokenizer, dated, request, text) for request, text in zip(REQUESTS, texts)]}
    json.dump(golden, sys.stdout, indent=0, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
