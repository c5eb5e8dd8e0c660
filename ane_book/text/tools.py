"""Tools: functions that a client offers, which a model may ask to be called.

A model was trained to read the list of functions in one place of its chat template, and to write a
call in one form; `ToolForm` knows the form, by what stands in the template. A model whose template
knows no tools reads the list in the system prompt, in the form that most others have ("hermes").
What a model writes is held to the form by a grammar: a function that was offered, and arguments of
its schema (`ane_book.runtime.grammar`).

    form      a call                                                      several calls
    hermes    <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>  one after the other
    list      [TOOL_CALLS] or <|tool_call|>, then [{"name": ..., "arguments": ...}]  in the list
    llama     {"name": "f", "parameters": {...}}                            no

References: huggingface.co/docs/transformers/chat_extras; the templates of Qwen2.5, Mistral 7B v0.3,
Granite 3 and Llama 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import json

__all__ = ["SPACED", "Calling", "ToolForm", "tool_form"]

SYSTEM = """You may call functions to help with the user's question. They are, as JSON schemas:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between tags:
<tool_call>
{{"name": NAME, "arguments": ARGUMENTS}}
</tool_call>"""

#: Of a JSON schema's grammar: the white space between parts, which a small model else never ends.
SPACED = {"whitespace_pattern": r"[ \t\r\n]{0,64}"}

#: Tools as a client gives them: [{"type": "function", "function": {"name", "parameters", ...}}].
Tools = Sequence[dict]


@dataclass(frozen=True)
class Calling:
    """What a client wants of its tools.

    must: a call has to come. several: more than one may.
    """

    must: bool = False
    several: bool = True


@dataclass(frozen=True)
class ToolForm:
    """How a model writes calls, and reads tools.

    opening, closing: what stands around a call, or a list of them. arguments: the key of these.
    read: whether the template reads the tools.
    """

    opening: str
    closing: str
    arguments: str = "arguments"
    listed: bool = False
    read: bool = True

    def grammar(self, tools: Tools, choice: Calling, opening: str | None = None) -> str:
        """The grammar of an answer: text, or calls of these tools, or calls alone.

        opening: how the grammar names the opening where that is a special token.
        """
        rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            function = tool["function"]
            schema = function.get("parameters") or {"type": "object", "properties": {}}
            head = f'{{"name": {json.dumps(function["name"])}, "{self.arguments}": '
            rules.append(f'call_{i}: {json.dumps(head)} args_{i} "}}"')
            rules.append(f"args_{i}: %json {json.dumps(schema | {'x-guidance': SPACED})}")
        return "\n".join(["%llguidance {}", *self._starts(choice, opening), *rules])

    def _starts(self, choice: Calling, opening: str | None) -> list[str]:
        if not self.opening:  # the whole answer is a call, or text that does not begin as one
            return ["start: call" if choice.must else "start: TEXT | call", r"TEXT: /[^{](.|\n)*/"]
        first = opening or json.dumps(self.opening)
        again = f"({json.dumps(chr(10) + self.opening)} rest)*"
        if self.listed:
            rest = 'rest: "[" call (", " call)* "]"' if choice.several else 'rest: "[" call "]"'
        else:
            rest = f"rest: call {json.dumps(self.closing)}"
        more = again if choice.several and not self.listed else ""
        if choice.must:
            return [f"start: {first} rest {more}", rest]
        if opening:  # no text has a special token in it
            return [f"start: TEXT | TEXT {first} rest {more}", r"TEXT: /(.|\n)*/", rest]
        begin = f"begin[lazy]: TEXT {first}"
        return [f"start: TEXT | begin rest {more}", begin, r"TEXT: /(.|\n)*/", rest]

    def calls(self, text: str) -> list[dict] | None:
        """The calls in what follows the first opening: {"name": str, "arguments": JSON text} each.

        None where the text is no whole list of calls, as when an answer ran out of tokens.
        """
        found: list[dict] = []
        decoder, at = json.JSONDecoder(), 0
        opening = self.opening.strip()
        try:
            while text[at:].strip():
                at = _behind(text, at, opening if found and not self.listed else "")
                value, end = decoder.raw_decode(text, at)
                found += value if isinstance(value, list) else [value]
                at = _behind(text, end, self.closing.strip())
            return [
                {"name": call["name"], "arguments": json.dumps(call[self.arguments])}
                for call in found
            ]
        except (ValueError, KeyError, TypeError):
            return None

    def messages(self, messages: list[dict], tools: Tools) -> list[dict]:
        """Messages with calls and results as the template takes them; where it takes none, as text,
        with the tools in the system prompt."""
        plain = [_with_values(message) for message in messages]
        if self.read:
            return plain
        told = [self._as_text(message) for message in plain]
        if not tools:
            return told
        listed = SYSTEM.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if told and told[0]["role"] == "system":
            told[0] = told[0] | {"content": f"{told[0]['content']}\n\n{listed}"}
            return told
        return [{"role": "system", "content": listed}, *told]

    def _as_text(self, message: dict) -> dict:
        if message["role"] == "tool":
            return {
                "role": "user",
                "content": f"<tool_response>\n{message['content']}\n</tool_response>",
            }
        calls = [
            f"{self.opening}{json.dumps(call['function'])}{self.closing}"
            for call in message.get("tool_calls", ())
        ]
        parts = [part for part in (message["content"], *calls) if part]
        return {"role": message["role"], "content": "\n".join(parts)}


HERMES = ToolForm("<tool_call>\n", "\n</tool_call>")
UNREAD = replace(HERMES, read=False)
#: What a template has, and the form of its model; the first that is there counts.
FORMS = {
    "<function=": UNREAD,  # arguments as XML, which no JSON schema holds
    "[TOOL_CALLS]": ToolForm("[TOOL_CALLS]", "", listed=True),
    "<|tool_call|>": ToolForm("<|tool_call|>", "", listed=True),
    "<tool_call>": HERMES,
    '"parameters": ': ToolForm("", "", "parameters"),
}


def tool_form(template: str) -> ToolForm:
    """The form of a model, by its chat template."""
    if "tools" in template:
        for mark, form in FORMS.items():
            if mark in template:
                return form
    return UNREAD


def _behind(text: str, at: int, mark: str) -> int:
    """The place behind a mark and the white space around it; ValueError where it is not there."""
    while at < len(text) and text[at].isspace():
        at += 1
    if not text.startswith(mark, at):
        raise ValueError(f"no {mark!r} at {at}")
    at += len(mark)
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _with_values(message: dict) -> dict:
    """A message whose calls have arguments as values, not as JSON, and some content."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        calls.append({**call, "function": {"name": function["name"], "arguments": arguments}})
    return {**message, "content": message["content"] or "", "tool_calls": calls}
