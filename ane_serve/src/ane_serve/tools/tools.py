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
    args      [TOOL_CALLS]f[ARGS]{...}, or ...f[CALL_ID]id[ARGS]{...}       one after the other
    python    <|tool_call_start|>[f(a=1)]<|tool_call_end|>                  in the list
              <function_calls>f(a=1)</function_calls>                       a line each
    llama     {"name": "f", "parameters": {...}}                            no

References: huggingface.co/docs/transformers/chat_extras; the templates of Qwen2.5, Qwen3.5, Mistral
7B v0.3, Ministral 3, Granite 3, Llama 3.1, LFM2, LFM2.5, OLMo 3 and Phi-4-mini (whose calls are on
its model card), and those of mistral-common for Mistral Small 3.2 (version 11).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
import json
import re
from typing import Any, Literal

from ane_book.errors import InvalidInput
from ane_book.text.chat import too_deep
from ane_book.text.schemas import SPACED, check_numbers, end_of_thought
from ane_serve.tools.calls import CallReader, JsonReader
from ane_serve.tools.python_calls import PythonReader, python_call, python_rules
from ane_serve.tools.xml_calls import XmlReader, xml_rules

SYSTEM = """You may call functions to help with the user's question. They are, as JSON schemas:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between tags:
<tool_call>
{{"name": NAME, "arguments": ARGUMENTS}}
</tool_call>"""

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

    opening, closing: what stands around a call, or a list of them. listed: between two calls of a
    list; "" where each call has its own opening. between: such calls. arguments: the key of these;
    "" where name and arguments stand apart. marks: between name and arguments then. numbered: an id
    may stand before that, behind this. written: how arguments are. nine: ids have nine letters or
    digits. read: whether the template reads the tools; "system": as a part of the system prompt.
    kept: whether it shows the calls of earlier turns.
    """

    opening: str
    closing: str
    arguments: str = "arguments"
    between: str = "\n"
    marks: str = ""
    numbered: str = ""
    listed: str = ""
    written: Literal["json", "xml", "python"] = "json"
    read: bool | Literal["system"] = True
    kept: bool = True
    nine: bool = False

    def special(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Which of these special tokens, by their text, stand in a call."""
        said = self.opening + self.numbered + self.marks + self.closing
        return {text: token for text, token in tokens.items() if text in said}

    def grammar(
        self,
        tools: Tools,
        choice: Calling,
        special: Mapping[str, int] | None = None,
        tags: tuple[str, str] | None = None,
    ) -> str:
        """The grammar of an answer: text, or calls of these tools, or calls alone.

        special: ids of the special tokens in a call or around a thought, which may be spelled too.
        tags: around a thought, where an answer may begin with one; no call begins in it. Raises
        InvalidInput for a schema that cannot be held to.
        """
        special = special or {}
        rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            rules += self._call(i, tool["function"], special)
        rules.append(self._calls(choice.several, special))
        return "\n".join(["%llguidance {}", *self._starts(choice, special, tags), *rules])

    def _call(self, i: int, function: dict, special: Mapping[str, int]) -> list[str]:
        """The rules of a call of the i-th function, `call_i` first."""
        name = function["name"]
        given = function.get("parameters") or {"additionalProperties": False}  # none is none
        schema = {"type": "object"} | given
        if schema["type"] != "object":
            raise InvalidInput(f"tools: {name}: parameters have to be of the type object")
        check_numbers(f"tools: {name}", schema)
        if self.written != "json":
            rules = xml_rules if self.written == "xml" else python_rules
            try:
                return rules(i, name, schema, SPACED)
            except (AttributeError, TypeError, RecursionError):  # a list where an object has to be
                raise InvalidInput(f"tools: {name}: parameters are no JSON schema") from None
        arguments = f"args_{i}: %json {json.dumps(schema | {'x-guidance': SPACED})}"
        if not self.arguments:
            head = f"{json.dumps(name)} {self._id(special)} {_either(self.marks, special)}"
            return [f"call_{i}: {head} args_{i}", arguments]
        head = f'{{"name": {json.dumps(name)}, "{self.arguments}": '
        return [f'call_{i}: {json.dumps(head)} args_{i} "}}"', arguments]

    def _id(self, special: Mapping[str, int]) -> str:
        return f"({_either(self.numbered, special)} /[a-zA-Z0-9]{{9}}/)?" if self.numbered else ""

    def _starts(
        self, choice: Calling, special: Mapping[str, int], tags: tuple[str, str] | None
    ) -> list[str]:
        """The rules of an answer: calls, or a thought that it may begin with, and what it says."""
        if choice.must:
            return [f"start: {_either(self.opening, special)} calls"]
        if self.opening:
            tag = re.split(r"(?<=[>\]])", self.opening)[0]  # behind it there has to be a call
            named = f" | TEXT <[{special[tag]}]>" if tag in special else ""
            begin = f"(spelled{named}) {json.dumps(self.opening.removeprefix(tag))}"
            rules = [f"spelled[lazy]: TEXT {json.dumps(tag)}"]
            text = r"/(.|\n)*/"
        else:  # the whole answer is a call, or text that does not begin as one
            begin, rules = r"/[ \t\r\n]*/", []
            text = r"/[ \t\r\n]*[^{ \t\r\n](.|\n)*/"
        rules.append(f"said: TEXT | {begin} calls")
        if tags is None:
            return ["start: said", f"TEXT: {text}", *rules]
        thought = rf"thought: /[ \t\r\n]*/ {_either(tags[0], special)} ended"
        text += rf" & ~/[ \t\r\n]*{re.escape(tags[0])}(.|\n)*/"
        rules += [thought, *end_of_thought(tags[1], special)]
        return ["start: thought? said", f"TEXT: {text}", *rules]

    def _calls(self, several: bool, special: Mapping[str, int]) -> str:
        """The rule of what follows the first opening."""
        closing = _either(self.closing, special)
        if self.listed:
            return f"calls: call {f'({json.dumps(self.listed)} call)*' * several} {closing}"
        if not (several and self.opening):
            return f"calls: call {closing}"
        again = _either(self.between + self.opening, special)
        return f"calls: call {closing} ({again} call {closing})*"

    def reader(self, tools: Tools) -> CallReader:
        """Reads what follows the first opening of an answer."""
        if self.written == "python":
            return PythonReader()
        if self.written == "xml":
            functions = [tool["function"] for tool in tools]
            return XmlReader({f["name"]: f.get("parameters") or {} for f in functions})
        if not self.arguments:
            number = rf"(?:{re.escape(self.numbered)}\w{{9}})?" if self.numbered else ""
            return JsonReader(r"([\w-]+)" + number + re.escape(self.marks))
        return JsonReader(rf'\{{"name": ("[^"\\]*"), "{self.arguments}":')

    def messages(
        self,
        messages: list[dict],
        tools: Tools,
        literal: Callable[[Any], Any] = lambda value: value,
    ) -> list[dict]:
        """Messages with calls and results as the template takes them; where it takes none, as text,
        with the tools in the system prompt.

        literal: for what a client wrote, in whose texts no special token may be read as one. A call
        that was cut has arguments that are no JSON object; they stay the text that they are.
        """
        plain, tools = literal([_with_values(message) for message in messages]), literal(tools)
        if self.nine:
            plain = [_with_short_ids(message) for message in plain]
        if not self.kept:
            plain = [self._with_calls_as_text(message) for message in plain]
        if self.read == "system":
            return _with_tools(plain, tools)
        if self.read:
            return plain
        told = [_result_as_text(message) for message in plain]
        if not tools:
            return told
        listed = SYSTEM.format(tools="\n".join(map(_json, tools)))
        if told and told[0]["role"] == "system":
            told[0] = told[0] | {"content": f"{told[0]['content']}\n\n{listed}"}
            return told
        return [{"role": "system", "content": listed}, *told]

    def _with_calls_as_text(self, message: dict) -> dict:
        if not (calls := message.get("tool_calls")):
            return message
        bodies = [self._body(**call["function"]) for call in calls]
        if self.listed:
            bodies = [self.listed.join(bodies)]
        said = self.between.join(f"{self.opening}{body}{self.closing}" for body in bodies)
        content = f"{message['content']}\n{said}" if message["content"] else said
        return {"role": message["role"], "content": content}

    def _body(self, name: str, arguments: dict | str) -> str:
        """A call as the model writes it, without what stands around it."""
        if self.written == "python":
            return python_call(name, arguments)
        said = arguments if isinstance(arguments, str) else _json(arguments)
        return f'{{"name": {_json(name)}, "{self.arguments}": {said}}}'


HERMES = ToolForm("<tool_call>\n", "\n</tool_call>")
UNREAD = replace(HERMES, read=False)
LIST = ToolForm("[TOOL_CALLS][", "]", listed=", ", nine=True)
ARGS = ToolForm("[TOOL_CALLS]", "", "", "", marks="[ARGS]", nine=True)
PYTHON = ToolForm("<|tool_call_start|>[", "]<|tool_call_end|>", listed=", ", written="python")
GRANITE = ToolForm("<|tool_call|>[", "]", listed=", ")
#: What a template has, and the form of its model; the first that is there counts.
FORMS = {
    "<function=": replace(HERMES, written="xml"),
    "<function_calls>": replace(
        PYTHON, opening="<function_calls>", closing="</function_calls>", listed="\n"
    ),
    "List of tools: ": PYTHON,
    "[CALL_ID]": replace(ARGS, numbered="[CALL_ID]"),
    "[ARGS]": ARGS,
    "[TOOL_CALLS]": LIST,
    "message['tools']": replace(GRANITE, closing="]<|/tool_call|>", read="system"),
    "<|tool_call|>": GRANITE,
    "<tool_call>": HERMES,
    '"parameters": ': ToolForm("", "", "parameters"),
}


def tool_form(template: str) -> ToolForm:
    """The form of a model, by its chat template."""
    form = UNREAD
    if "tools" in template:
        form = next((form for mark, form in FORMS.items() if mark in template), UNREAD)
    return replace(form, kept=bool(form.read) and "tool_calls" in template)


def _either(text: str, special: Mapping[str, int]) -> str:
    """A text as a grammar has it, its special tokens spelled or named."""
    spelled, named = json.dumps(text), _named(text, special)
    return spelled if named in (spelled, "") else f"({spelled} | {named})"


def _named(text: str, special: Mapping[str, int]) -> str:
    """A text as a grammar has it, where each special token is named by its id."""
    marks = "|".join(map(re.escape, special))
    parts = re.split(f"({marks})", text) if special else [text]
    return " ".join(f"<[{special[p]}]>" if p in special else json.dumps(p) for p in parts if p)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_values(message: dict) -> dict:
    """A message whose calls have arguments as values, not as JSON, and some content."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = _value(function["arguments"])
        calls.append({**call, "function": {"name": function["name"], "arguments": arguments}})
    return {**message, "content": message["content"] or "", "tool_calls": calls}


def _value(arguments: str) -> dict | str:
    """The arguments of a call, or the text that they are, where that is no object of JSON."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and not too_deep(value) else arguments


def cut_call(messages: Sequence[dict]) -> str | None:
    """The place of the first call whose arguments are no JSON object."""
    for i, message in enumerate(messages):
        for j, call in enumerate(message.get("tool_calls", ())):
            if isinstance(_value(call["function"]["arguments"]), str):
                return f"messages.{i}.tool_calls.{j}"
    return None


def _result_as_text(message: dict) -> dict:
    if message["role"] != "tool":
        return message
    content = f"<tool_response>\n{message['content']}\n</tool_response>"
    return {"role": "user", "content": content}


def _with_tools(messages: list[dict], tools: Tools) -> list[dict]:
    """Messages as Phi-4-mini's template takes them: tools are a field of the system message, and
    the role of a result is the name of its token."""
    told = [m | {"role": "tool_response"} if m["role"] == "tool" else m for m in messages]
    if not tools:
        return told
    system = {"role": "system", "content": "You are a helpful assistant with some tools."}
    if told and told[0]["role"] == "system":
        system, told = told[0], told[1:]
    return [system | {"tools": _json([tool["function"] for tool in tools])}, *told]


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
