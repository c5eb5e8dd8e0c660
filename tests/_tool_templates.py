"""Short chat templates of our own, whose calls of tools have the form of a family's templates.

What they share with the families' own: where the tools are listed, how calls and results of earlier
turns stand there. What they leave out: dates, system prompts of their own, images.
"""

import json

from ane_serve.tools.tools import ToolForm

_TURNS = "{% for m in messages %}"
_CALLS = "{% for call in m.tool_calls or [] %}"

TOOL_TEMPLATES = {
    # Qwen2.5 and Qwen3: JSON between tags, results between others.
    "qwen2.5": (
        "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>"
        "{% else %}{{ m.role[0] }}:{{ m.content }}" + _CALLS +
        '<tool_call>\n{"name": "{{ call.function.name }}", '
        '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
        "{% endif %};{% endfor %}"
    ),
    # Qwen3.5: an argument between tags of its own; a text as it is, else as JSON.
    "qwen3.5": (
        "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>"
        "{% else %}{{ m.role[0] }}:{{ m.content }}" + _CALLS +
        "<tool_call>\n<function={{ call.function.name }}>\n"
        "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n"
        "{{ value if value is string else value | tojson }}\n"
        "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}{% endif %};{% endfor %}"
    ),
    # Mistral 7B v0.3 and Nemo: a list behind a special token, with ids of nine characters.
    "mistral-v0.3": (
        "{% for tool in tools or [] %}[AVAILABLE_TOOLS]{{ tool | tojson }}{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
        "{{ raise_exception('an id has nine characters') }}{% endif %}"
        "[TOOL_RESULTS]{{ m.content }}"
        "{% elif m.tool_calls %}[TOOL_CALLS][" + _CALLS +
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, '
        '"id": "{{ call.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]'
        "{% else %}{{ m.role[0] }}:{{ m.content }}{% endif %};{% endfor %}"
    ),
    # Ministral 3: the name behind a special token, the arguments behind another.
    "ministral-3": (
        "{% for tool in tools or [] %}[AVAILABLE_TOOLS]{{ tool | tojson }}{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}"
        "{% else %}{{ m.role[0] }}:{{ m.content }}" + _CALLS +
        "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}"
        "{% endfor %}{% endif %};{% endfor %}"
    ),
    # Mistral Small 3.2: an id of nine characters between the name and its arguments.
    "mistral-small-3.2": (
        "{% for tool in tools or [] %}[AVAILABLE_TOOLS]{{ tool | tojson }}{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
        "{{ raise_exception('an id has nine characters') }}{% endif %}"
        "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}"
        "{% else %}{{ m.role[0] }}:{{ m.content }}" + _CALLS +
        "{% set a = call.function.arguments %}"
        "[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]"
        "{{ a if a is string else a | tojson }}{% endfor %}{% endif %};{% endfor %}"
    ),
    # LFM2: calls like Python's; those of earlier turns have no place of their own.
    "lfm2": (
        "List of tools: <|tool_list_start|>["
        "{% for tool in tools or [] %}{{ tool | tojson }}, {% endfor %}]<|tool_list_end|>"
        + _TURNS + "{{ m.role[0] }}:{% if m.role == 'tool' %}<|tool_response_start|>{% endif %}"
        "{{ m.content }};{% endfor %}"
    ),
    # LFM2.5: the same with a place for them, where a text stands between single quotes.
    "lfm2.5": (
        "List of tools: {{ tools | tojson }}" + _TURNS + "{{ m.role[0] }}:{{ m.content }}"
        "{% if m.tool_calls %}<|tool_call_start|>[" + _CALLS +
        "{{ call.function.name }}({% for key, value in call.function.arguments.items() %}"
        """{{ key }}={{ "'" + value + "'" if value is string else value | string }}"""
        "{% if not loop.last %}, {% endif %}{% endfor %})"
        "{% if not loop.last %}, {% endif %}{% endfor %}]<|tool_call_end|>{% endif %};{% endfor %}"
    ),
    # OLMo 3: such calls between tags, a line each.
    "olmo-3": (
        "<functions>{{ tools | tojson }}</functions>" + _TURNS + "{{ m.role[0] }}:{{ m.content }}"
        "{% if m.tool_calls %}<function_calls>" + _CALLS +
        "{{ call.function.name }}({% for key, value in call.function.arguments.items() %}"
        "{{ key }}={{ value | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})"
        "{% if not loop.last %}\n{% endif %}{% endfor %}</function_calls>{% endif %};{% endfor %}"
    ),
    # Phi-4-mini: tools are a field of the system message, calls a list between special tokens.
    "phi-4-mini": (
        "{% for message in messages %}"
        "{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none"
        " %}<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|><|end|>"
        "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
    ),
    # Granite 3: a list behind a special token.
    "granite-3": (
        "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}tool_response:{{ m.content }}"
        "{% elif m.tool_calls %}<|tool_call|>[" + _CALLS +
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
        "{% if not loop.last %}, {% endif %}{% endfor %}]"
        "{% else %}{{ m.role[0] }}:{{ m.content }}{% endif %};{% endfor %}"
    ),
    # Llama 3.1 and 3.2: the whole answer is one call, whose arguments are called parameters.
    "llama-3.1": (
        "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + _TURNS +
        "{% if m.role == 'tool' %}ipython:{{ m.content }}"
        "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('one call a message') }}{% endif %}" + _CALLS +
        '{"name": "{{ call.function.name }}", '
        '"parameters": {{ call.function.arguments | tojson }}}{% endfor %}'
        "{% else %}{{ m.role[0] }}:{{ m.content }}{% endif %};{% endfor %}"
    ),
}

#: The special tokens of each family that stand in its calls.
SPECIAL = {
    "mistral-v0.3": ["[TOOL_CALLS]"],
    "ministral-3": ["[TOOL_CALLS]", "[ARGS]"],
    "mistral-small-3.2": ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "lfm2.5": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "phi-4-mini": ["<|tool_call|>", "<|/tool_call|>"],
    "granite-3": ["<|tool_call|>"],
}


def written(form: ToolForm, *calls: tuple[str, dict]) -> str:
    """Calls as a model of this form writes them."""
    if form.written == "xml":
        bodies = []
        for name, arguments in calls:
            each = "".join(
                f"<parameter={key}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n"
                for key, v in arguments.items()
            )
            bodies.append(f"<function={name}>\n{each}</function>")
    elif form.written == "python":
        bodies = [
            f"{name}({', '.join(f'{key}={json.dumps(v)}' for key, v in a.items())})"
            for name, a in calls
        ]
    elif form.arguments:
        bodies = [json.dumps({"name": name, form.arguments: a}) for name, a in calls]
    else:
        number = f"{form.numbered}aB3456789" if form.numbered else ""
        bodies = [f"{name}{number}{form.marks}{json.dumps(a)}" for name, a in calls]
    if form.listed:
        bodies = [form.listed.join(bodies)]
    return form.between.join(form.opening + body + form.closing for body in bodies)
