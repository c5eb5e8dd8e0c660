"""Tools: functions that a client offers, which a model may ask to be called.

A model was trained to read the list of functions in one place of its chat template, and to write a
call in one form; `ToolForm` knows the form, by what stands in the template. A model whose template
knows no tools reads the list in the system prompt, in the form that most others have ("hermes").
What a model writes is held to the form by a grammar: a function that was offered, and arguments of
its schema (`ane_book.runtime.grammar`).

    form      a call                                                      several calls
    hermes    <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>  one after the other
    xml       <tool_call>\n<function=f>\n...</function>\n</tool_call>       one after the other
    list      [TOOL_CALLS] or <|tool_call|>, then [{"name": ..., "arguments": ...}]  in the list
    args      [TOOL_CALLS]f[ARGS]{...}                                    one after the other
    llama     {"name": "f", "parameters": {...}}                            no

References: huggingface.co/docs/transformers/chat_extras; the templates of Qwen2.5, Qwen3.5, Mistral
7B v0.3, Ministral 3, Granite 3 and Llama 3.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
import json
import re

from ane_book.errors import InvalidInput
from ane_book.text.calls import CallReader, JsonReader
from ane_book.text.xml_calls import XmlReader, xml_rules

__all__ = ["SPACED", "Calling", "ToolForm", "Tools", "tool_form"]

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

    opening, closing: what stands around a call, or a list of them. between: two calls. arguments:
    the key of these; "" where name and arguments stand apart. marks: between name and arguments
    then. listed: several calls are a list. xml: arguments stand between tags. read: whether the
    template reads the tools. nine: ids have nine letters or digits.
    """

    opening: str
    closing: str
    arguments: str = "arguments"
    between: str = "\n"
    marks: str = ""
    listed: bool = False
    xml: bool = False
    read: bool = True
    nine: bool = False

    def special(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Which of these special tokens, by their text, stand in a call."""
        said = self.opening + self.marks + self.closing
        return {text: token for text, token in tokens.items() if text in said}

    def grammar(
        self,
        tools: Tools,
        choice: Calling,
        special: Mapping[str, int] | None = None,
        thinking: str | None = None,
    ) -> str:
        """The grammar of an answer: text, or calls of these tools, or calls alone.

        special: ids of the special tokens in a call. thinking: what ends the thought that the
        answer begins within. Raises InvalidInput for a schema that cannot be held to.
        """
        special = special or {}
        rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            rules += self._call(i, tool["function"], special)
        starts = self._starts(choice, special)
        if thinking is not None:
            starts[0] = starts[0].replace("start: ", "said: ")
            thought = f"thought[lazy]: /(.|\\n)*/ {json.dumps(thinking)}"
            starts = [r"start: thought /[ \t\r\n]{0,4}/ said", thought, *starts]
        return "\n".join(["%llguidance {}", *starts, *rules])

    def _call(self, i: int, function: dict, special: Mapping[str, int]) -> list[str]:
        """The rules of a call of the i-th function, `call_i` first."""
        name, empty = function["name"], {"type": "object", "properties": {}}
        schema = {"type": "object"} | (function.get("parameters") or empty)
        if schema["type"] != "object":
            raise InvalidInput(f"tools: {name}: parameters have to be of the type object")
        if self.xml:
            try:
                return xml_rules(i, name, schema, SPACED)
            except (AttributeError, TypeError, RecursionError):  # a list where an object has to be
                raise InvalidInput(f"tools: {name}: parameters are no JSON schema") from None
        arguments = f"args_{i}: %json {json.dumps(schema | {'x-guidance': SPACED})}"
        if not self.arguments:
            head = f"{json.dumps(name)} {_said(self.marks, special)}"
            return [f"call_{i}: {head} args_{i}", arguments]
        head = f'{{"name": {json.dumps(name)}, "{self.arguments}": '
        return [f'call_{i}: {json.dumps(head)} args_{i} "}}"', arguments]

    def _starts(self, choice: Calling, special: Mapping[str, int]) -> list[str]:
        if not self.opening:  # the whole answer is a call, or text that does not begin as one
            return ["start: call" if choice.must else "start: TEXT | call", r"TEXT: /[^{](.|\n)*/"]
        first, several = _said(self.opening, special), choice.several
        if self.listed:
            rest, more = 'rest: "[" call' + ' (", " call)*' * several + ' "]"', ""
        else:
            rest = f"rest: call {_said(self.closing, special)}"
            more = f"({_said(self.between + self.opening, special)} rest)*" * several
        if choice.must:
            return [f"start: {first} rest {more}", rest]
        if first.startswith("<["):  # no text has a special token in it
            return [f"start: TEXT | TEXT {first} rest {more}", r"TEXT: /(.|\n)*/", rest]
        begin = f"begin[lazy]: TEXT {first}"
        return [f"start: TEXT | begin rest {more}", begin, r"TEXT: /(.|\n)*/", rest]

    def reader(self, tools: Tools) -> CallReader:
        """Reads what follows the first opening of an answer."""
        if self.xml:
            functions = [tool["function"] for tool in tools]
            return XmlReader({f["name"]: f.get("parameters") or {} for f in functions})
        if not self.arguments:
            return JsonReader(r"([\w-]+)" + re.escape(self.marks))
        return JsonReader(rf'\{{"name": ("[^"\\]*"), "{self.arguments}":')

    def messages(self, messages: list[dict], tools: Tools) -> list[dict]:
        """Messages with calls and results as the template takes them; where it takes none, as text,
        with the tools in the system prompt."""
        plain = [_with_values(message) for message in messages]
        if self.nine:
            plain = [_with_short_ids(message) for message in plain]
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
    "<function=": replace(HERMES, xml=True),
    "[ARGS]": ToolForm("[TOOL_CALLS]", "", "", "", marks="[ARGS]", nine=True),
    "[TOOL_CALLS]": ToolForm("[TOOL_CALLS]", "", listed=True, nine=True),
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


def _said(text: str, special: Mapping[str, int]) -> str:
    """A text as a grammar has it, where each special token is named by its id."""
    marks = "|".join(map(re.escape, special))
    parts = re.split(f"({marks})", text) if special else [text]
    return " ".join(f"<[{special[p]}]>" if p in special else json.dumps(p) for p in parts if p)


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


def _with_short_ids(message: dict) -> dict:
    """A message whose ids of calls have nine letters or digits, as Mistral's templates ask for;
    another server's, or a client's own, may have more."""
    if "tool_call_id" in message:
        message = message | {"tool_call_id": _short(message["tool_call_id"])}
    if "tool_calls" in message:
        calls = [call | {"id": _short(call["id"])} for call in message["tool_calls"]]
        message = message | {"tool_calls": calls}
    return message


def _short(name: str) -> str:
    if re.fullmatch("[a-zA-Z0-9]{9}", name):
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:9]
