"""Short chat templates of our own, whose calls of tools have the form of a family's templates.

What they share with the families' own: where the tools are listed, how calls and results of earlier
turns stand there. What they leave out: dates, system prompts of their own, images.
"""

import json

from ane_book.text.tools import ToolForm

__all__ = ["SPECIAL", "TOOL_TEMPLATES", "written"]

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
    "granite-3": ["<|tool_call|>"],
}


def written(form: ToolForm, *calls: tuple[str, dict]) -> str:
    """Calls as a model of this form writes them."""
    if form.xml:
        bodies = []
        for name, arguments in calls:
            each = "".join(
                f"<parameter={key}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n"
                for key, v in arguments.items()
            )
            bodies.append(f"<function={name}>\n{each}</function>")
    elif form.arguments:
        bodies = [json.dumps({"name": name, form.arguments: a}) for name, a in calls]
    else:
        bodies = [f"{name}{form.marks}{json.dumps(a)}" for name, a in calls]
    if form.listed:
        return form.opening + f"[{', '.join(bodies)}]"
    return form.between.join(form.opening + body + form.closing for body in bodies)
