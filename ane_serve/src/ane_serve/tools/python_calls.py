"""Calls as LFM2 and OLMo 3 write them, like calls of Python: `weather(city="Rome", days=3)`.

Here arguments are written in the order of the schema, each as JSON; a text may stand between single
quotes, and True, False and None may be said as Python has them.
"""

import json
import re

from ane_book.errors import InvalidInput
from ane_serve.tools.calls import ArgumentReader, CallPart
from ane_serve.tools.xml_calls import HEEDED, SILENT, kinds, resolved

WORDS = {"True": "true", "False": "false", "None": "null"}
SINGLE = r"""/'([^'\\\x00-\x1f]|\\['"\\nrt])*'/"""  # a text of Python's between single quotes


def python_call(name: str, arguments: dict | str) -> str:
    """A call as such a model writes it; arguments that were cut go in as they are."""
    if isinstance(arguments, str):
        return f"{name}({arguments})"
    said = {key: json.dumps(value, ensure_ascii=False) for key, value in arguments.items()}
    words = {json_word: word for word, json_word in WORDS.items()}
    return f"{name}({', '.join(f'{key}={words.get(v, v)}' for key, v in said.items())})"


def python_rules(i: int, name: str, schema: dict, spaced: dict) -> list[str]:
    """The rules of the i-th function's call, `call_i` first; spaced: added to schemas of JSON.

    From the j-th parameter on, `first_i_j` has the arguments where none came before, and `more_i_j`
    those behind others.
    """
    if wrong := sorted(schema.keys() - HEEDED - SILENT):
        raise InvalidInput(f"tools: {name}: {wrong[0]} cannot be held to in this model's calls")
    needed, parameters = schema.get("required", ()), list(schema.get("properties", {}).items())
    rules = [f'call_{i}: {json.dumps(name + "(")} first_{i}_0 ")"']
    for j, (key, given) in enumerate(parameters):
        if not re.fullmatch(r"[^\s=,()'\"\\]+", key):
            raise InvalidInput(f"tools: {name}: a parameter cannot be named {key!r:.40} here")
        own, rest = f"{json.dumps(key + '=', ensure_ascii=False)} v_{i}_{j}", f"_{i}_{j + 1}"
        skipped = key not in needed
        rules.append(f"first_{i}_{j}: {own} more{rest}" + f" | first{rest}" * skipped)
        rules.append(f'more_{i}_{j}: ", " {own} more{rest}' + f" | more{rest}" * skipped)
        rules += _value(f"v_{i}_{j}", given, schema, spaced)
    last = len(parameters)
    return [*rules, f'first_{i}_{last}: ""', f'more_{i}_{last}: ""']


def _value(rule: str, given: dict, whole: dict, spaced: dict) -> list[str]:
    schema = resolved(given, whole)
    kept = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    said = json.dumps(schema | kept | {"x-guidance": spaced})
    forms = [f"{rule}_json"]
    if not schema.keys() - {"type", "anyOf"} - SILENT:  # nothing else is asked of a value
        named = kinds(schema, whole)
        forms += ['"True"', '"False"'] * ("boolean" in named) + ['"None"'] * ("null" in named)
    if schema.get("type") == "string" and not schema.keys() - {"type"} - SILENT:
        forms.append(SINGLE)
    texts = [each for each in schema.get("enum", ()) if isinstance(each, str)]
    plain = [each for each in texts if not re.search(r"['\\\x00-\x1f]", each)]
    forms += [json.dumps(f"'{each}'", ensure_ascii=False) for each in plain]
    return [f"{rule}: {' | '.join(forms)}", f"{rule}_json: %json {said}"]


class PythonReader(ArgumentReader):
    """Reads such calls."""

    BEGINS = r"([\w-]+)\("
    NEXT = r"[\s,]*(?:\)|([^\s=,()]+)=(?=.))"

    def __init__(self) -> None:
        super().__init__()
        self._quote = ""  # what ends the text that is read, of a value
        self._depth, self._escaped = 0, False

    def _value(self) -> list[CallPart]:
        if not self._depth and not self._quote and self.held[:1] not in ("'", '"', "[", "{"):
            return self._word()
        text, said, self.held = self.held, "", ""
        for i, sign in enumerate(text):
            said += self._sign(sign)
            if not self._depth and not self._quote:
                self.held, self._key = text[i + 1 :], ""
                break
        return [self._part(said)] if text else []

    def _sign(self, sign: str) -> str:
        """A character of a text, a list or an object, as JSON has it."""
        if self._escaped:
            self._escaped = False
            return sign if sign == "'" else f"\\{sign}"
        if self._quote:
            self._escaped = sign == "\\"
            if sign != self._quote:
                return "" if self._escaped else '\\"' if sign == '"' else sign
            self._quote = ""
            return '"'
        if sign in "'\"":
            self._quote = sign
            return '"'
        self._depth += (sign in "{[") - (sign in "}]")
        return sign

    def _word(self) -> list[CallPart]:
        """A number, or a word such as True, once it is known where it ends."""
        if (found := re.match(r"[^,)]*(?=[,)])", self.held)) is None:
            return []
        self.held, self._key = self.held[found.end() :], ""
        return [self._part(WORDS.get(found[0], found[0]))]
