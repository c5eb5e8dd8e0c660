"""Answers that keep to a form: a JSON schema, a regular expression, or a grammar.

Before a token is drawn, all tokens with which the text could no longer become an answer of the form
are taken out of the logits. What is drawn among the others is drawn as ever, so an answer that is
of the form by itself stays as it is, token for token. Special tokens are no text, and never taken
unless a grammar names them; added tokens that are not special are the text that they give. The end
token is taken as soon as the text is whole, and only then. An answer that begins within a thought
is free until that has ended.

The masks come from llguidance, whose limits bound the time and memory that a grammar may take. What
a JSON schema says and llguidance does not know is refused by its name.

Reference: github.com/guidance-ai/llguidance (docs/json_schema.md, docs/syntax.md).
Letters: V vocabulary.
"""

from collections.abc import Iterable
import json
from pathlib import Path
import re
from typing import Any

from ane_book.errors import BackendUnavailable, InvalidInput
from ane_book.text.chat import DEEPEST, too_deep
from ane_book.text.process import check_text
from ane_book.text.schemas import SPACED, check_numbers, end_of_thought
from mlprogram.extras import missing
import numpy as np

try:
    import llguidance
except ImportError:  # of the extra [grammar]
    llguidance = None  # type: ignore[assignment]


LONGEST = 1 << 17  # characters of a form


class GrammarTokens:
    """The tokens of a model, as grammars read them, made once a session in some tenths of a second.

    file: tokenizer.json. vocabulary: V. ends: the tokens that end an answer.
    Raises BackendUnavailable without llguidance, and InvalidInput where it cannot read the file.
    """

    def __init__(self, file: Path, vocabulary: int, ends: Iterable[int]):
        if llguidance is None:
            why = missing("to hold answers to a form", "ane-book[grammar]", "llguidance")
            raise BackendUnavailable(why)
        if not (ends := sorted(ends)):
            raise InvalidInput("no token of this model ends an answer, so none keeps a form")
        text = file.read_text("utf-8")
        try:
            added = json.loads(text).get("added_tokens", [])
            special = {token["content"]: token["id"] for token in added if token.get("special")}
            read = llguidance.LLTokenizer(text, n_vocab=vocabulary, eos_token=ends)
            words = _Words(read, ends, {token["id"] for token in added}, special)
            wrapped = llguidance.TokenizerWrapper(words)
            self._tokens = llguidance.LLTokenizer(wrapped, n_vocab=vocabulary, eos_token=ends)
        except ValueError as error:
            raise InvalidInput(f"this model's tokens cannot be held to a form: {error}") from None
        self.vocabulary, self._special = vocabulary, special
        self._last: tuple | None = None  # a form, its text, and what was compiled of them

    def mask(self, form: str, text: str, end: str = "") -> "Mask":
        """The mask of one answer. form: one of `ane_book.options.FORMS`. end: the tag that ends the
        thought within which the answer begins; it keeps the form behind that.

        The last form stays compiled: the answers to one request have it in common, and so have the
        turns of an agent. Raises InvalidInput for what is no such form, or a larger one than is
        taken here.
        """
        if len(text) > LONGEST:
            raise InvalidInput(f"{form}: it has {len(text):,} characters; {LONGEST:,} are taken")
        check_text(text, f"{form}: it")
        last = self._last  # read once: another thread may set it
        if last is None or last[:3] != (form, text, end):
            self._last = last = (form, text, end, self._compiled(form, text, end))
        return Mask(last[3].deep_copy(), form, self.vocabulary)

    def _compiled(self, form: str, text: str, end: str):
        """llguidance's matcher of a form, before its first token."""
        grammar = _SOURCES[form](text)
        if end:  # a grammar for the text behind the end of a thought
            self._matcher(form, grammar)  # whose own faults would not show behind it
            own = {"lark_grammar": grammar}
            if form != "grammar":
                own = json.loads(grammar)["grammars"][0]
            thought = end_of_thought(end, self._special)
            rules = "\n".join([r"start: ended /[ \t\r\n]{0,4}/ @said", *thought])
            grammar = json.dumps({"grammars": [{"lark_grammar": rules}, own | {"name": "said"}]})
        return self._matcher(form, grammar)

    def _matcher(self, form: str, grammar: str):
        matcher = llguidance.LLMatcher(
            self._tokens,
            grammar,
            log_level=0,
            limits=llguidance.LLParserLimits(verbose_errors=False),  # nothing of another's grammar
        )
        if matcher.is_error():
            raise InvalidInput(f"{form}: {_reason(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():
            raise InvalidInput(f"{form}: {_reason(warnings[0])}")
        first = np.zeros(self.vocabulary, np.float32)
        Mask(matcher, form, self.vocabulary).apply(first)  # no answer may keep the form at all
        return matcher


class _Words:
    """The tokens of a model for llguidance, which by itself has all added tokens between < and > as
    special ones, and reads the texts of those in a grammar's text as them."""

    bos_token_id = None

    def __init__(self, read, ends: list[int], added: set[int], special: dict[str, int]):
        ids, texts = range(read.vocab_size), added - {*special.values(), *ends}
        self.eos_token_id = ends[0]
        self.tokens = [read.decode_bytes([id]) for id in ids]
        self.special_token_ids = [id for id in ids if read.is_special_token(id) and id not in texts]
        within = [f"(?<={re.escape(each[:1])})(?={re.escape(each[1:])})" for each in special]
        self._read, self._within = read, re.compile("|".join(within) or "(?!)")

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text in which no special one is read."""
        parts = self._within.split(text)
        return [token for part in parts for token in self._read.tokenize_str(part)]


class Mask:
    """What the next token of one answer may be; every token drawn is told to it by `take`."""

    def __init__(self, matcher, form: str, vocabulary: int):
        self._matcher, self._form = matcher, form
        self._bits = np.empty(-(-vocabulary // 32), dtype=np.int32)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Logits (V,) with those of tokens that leave the form at -inf."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: logits.size]
        return np.where(allowed, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """Go on behind this token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidInput(f"{self._form}: {_reason(self._matcher.get_error())}")


def _schema(text: str) -> str:
    """A grammar of a JSON schema, with white space where a model likes to put it."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"json_schema: it is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidInput('json_schema: it has to be an object, such as {"type": "object"}')
    _check("json_schema", schema)
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults={"whitespace_pattern": SPACED["whitespace_pattern"]}
        )
    except ValueError as error:  # half of a character, which JSON can write and UTF-8 cannot
        raise InvalidInput(f"json_schema: {_reason(str(error))}") from None


def _lark(text: str) -> str:
    """A grammar of Lark's, which may have JSON schemas in it."""
    for found in re.finditer(r"%json\s*", text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong
        _check("grammar", schema)
    return llguidance.LLMatcher.grammar_from_lark(text)


def _check(form: str, schema: Any) -> None:
    if too_deep(schema):
        raise InvalidInput(f"{form}: it is nested more than {DEEPEST} deep")
    check_numbers(form, schema)


_SOURCES = {
    "json_schema": _schema,
    "regex": lambda text: llguidance.LLMatcher.grammar_from_regex(text),
    "grammar": _lark,
}


def _reason(error: str) -> str:
    """The first line of an error, without what it repeats of the grammar, and below it the line
    in which a parser of expressions says why."""
    first, *others = error.strip().splitlines()
    if first == "NoExtensionBias":
        return "it refers to itself without end, so no text is of it"
    why = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return " ".join([first[:200], *why[:1]])[:300]
