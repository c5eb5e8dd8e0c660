"""Calls as Qwen3.5 and Qwen3-Coder write them: each argument between tags.

    <function=weather>
    <parameter=city>
    Rome
    </parameter>
    <parameter=days>
    3
    </parameter>
    </function>

A text stands there as it is, everything else as JSON. Here arguments are written in the order of
the schema. What a schema says of a text is held to by an expression; what an expression cannot say
is refused by its name.
"""

import json
import re

from ane_book.errors import InvalidInput
from ane_book.runtime.answer import overlap
from ane_serve.tools.calls import ArgumentReader, CallPart

STOP = "\n</parameter>"
END = STOP + "\n"
#: Of a schema of arguments, what is heeded, or says nothing of their form.
HEEDED = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
SILENT = {"title", "description", "default", "examples", "$schema", "strict", "deprecated"}
OF_TEXT = {"type", "anyOf", "enum", "const", "pattern", "minLength", "maxLength"}


def xml_rules(i: int, name: str, schema: dict, spaced: dict) -> list[str]:
    """The rules of the i-th function's call, `call_i` first; spaced: added to schemas of JSON."""
    if wrong := sorted(schema.keys() - HEEDED - SILENT):
        raise InvalidInput(f"tools: {name}: {wrong[0]} cannot be held to in this model's calls")
    needed, order, rules = schema.get("required", ()), [], []
    for j, (key, given) in enumerate(schema.get("properties", {}).items()):
        if re.search(r"[>\n]", key):
            raise InvalidInput(f"tools: {name}: a parameter cannot be named {key!r:.40} here")
        order.append(f"p_{i}_{j}" + "?" * (key not in needed))
        rules.append(f"p_{i}_{j}: {_text(f'<parameter={key}>' + chr(10))} v_{i}_{j}")
        rules += _value(f"v_{i}_{j}", f"{name}.{key}", given, schema, spaced)
    head, tail = _text(f"<function={name}>\n"), _text("</function>")
    return [f"call_{i}: {' '.join([head, *order, tail])}", *rules]


def _value(rule: str, place: str, given: dict, whole: dict, spaced: dict) -> list[str]:
    schema = resolved(given, whole)
    if not _is_text(schema, whole):
        kept = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        said = json.dumps(schema | kept | {"x-guidance": spaced})
        return [f"{rule}: {rule}_json {_text(END)}", f"{rule}_json: %json {said}"]
    options = [resolved(each, whole).keys() - {"type"} for each in schema.get("anyOf", ())]
    if wrong := sorted(set().union(schema.keys() - OF_TEXT, *options) - SILENT):
        raise InvalidInput(f"tools: {place}: {wrong[0]} cannot be held to in this model's calls")
    if known := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return [f"{rule}: ({' | '.join(map(_text, known))}) {_text(END)}"]
    size = f"{schema.get('minLength', 0)},{schema.get('maxLength', '')}"
    forms = [f"/(?s:.{{{size}}})/", r"~/(?s:.*)\n<\/parameter>(?s:.*)/"]
    if pattern := schema.get("pattern"):
        forms.append(f"/{_expression(pattern)}/")
    token = rule.upper()
    return [f"{rule}[lazy]: {token}", f"{token}: ({' & '.join(forms)}) {_text(END)}"]


def _expression(pattern: str) -> str:
    """A pattern, which may match anywhere in a text, as an expression of the whole text."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if re.search(r"(?<!\\)\$$", pattern) else "(?s:.*)"
    inner = pattern.removeprefix("^") if end else pattern.removeprefix("^")[:-1]
    inner = re.sub(r"(?<!\\)/", r"\/", inner).replace("\n", r"\n")
    return f"{begin}({inner}){end}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def resolved(schema: dict, whole: dict) -> dict:
    """A schema, or what it refers to in the definitions of the whole."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        found = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", reference or "")
        if found is None:
            break
        schema = whole.get(found[1], {}).get(found[2], {})
    return schema if isinstance(schema, dict) else {}


def kinds(schema: dict, whole: dict) -> list[str]:
    """The types that a schema allows, as far as it names them."""
    options = [resolved(each, whole) for each in schema.get("anyOf", ())]
    kind = schema.get("type", [])
    said = [kind] if isinstance(kind, str) else list(kind)
    return [*said, *(each for option in options for each in kinds(option, whole))]


def _is_text(schema: dict, whole: dict) -> bool:
    """Whether a value stands there as it is, since it may be a text."""
    if known := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return all(isinstance(each, str) for each in known)
    return "string" in kinds(schema, whole)


class XmlReader(ArgumentReader):
    """Reads such calls; parameters: the schema of each function's arguments, by its name."""

    BEGINS = r"<function=([^>\n]+)>\n"
    NEXT = r"\s*(?:</function>|<parameter=([^>\n]+)>\n)"

    def __init__(self, parameters: dict[str, dict]):
        super().__init__()
        self._schemas = parameters
        self._text = self._null = self._quoted = False  # of the value that is read

    def _open(self) -> None:
        whole = self._schemas.get(self._name, {})
        value = resolved(whole.get("properties", {}).get(self._key, {"type": "string"}), whole)
        self._quoted, self._text = False, _is_text(value, whole)
        self._null = self._text and "null" in kinds(value, whole)

    def _value(self) -> list[CallPart]:
        value, found, behind = self.held.partition(STOP)
        keep = 0 if found else overlap(value, STOP)
        value, kept = value[: len(value) - keep], value[len(value) - keep :]
        if self._null and not found and "null".startswith(value):
            return []
        self.held = behind if found else kept
        said = self._said(value, bool(found))
        if found:
            self._key = ""
        return [self._part(said)] if said or found else []

    def _said(self, value: str, ends: bool) -> str:
        if not self._text:
            return value
        if self._null and ends and not self._quoted and value == "null":
            return value
        opened, self._quoted, self._null = '"' * (not self._quoted), True, False
        return opened + _text(value)[1:-1] + '"' * ends
