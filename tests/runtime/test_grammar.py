"""Answers that keep a form, whatever the logits are."""

import json
import re

from _smollm2_tokenizer import smollm2, tokenizer
from ane_book.errors import InvalidInput
from ane_book.options import Sampling
from ane_book.runtime.grammar import GrammarTokens
from ane_book.runtime.sampling import Sampler
from ane_book.text.chat import DEEPEST
import jsonschema
import numpy as np
import pytest

V, END = 49_152, 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    file.write_text(smollm2().json, encoding="utf-8")
    return GrammarTokens(file, V, [END])


def drawn(mask, seed: int, most: int = 400, temperature: float = 1.0) -> list[int]:
    """Tokens drawn from logits that know nothing, but for a growing wish to end."""
    random, found = np.random.default_rng(seed), []
    sampler = Sampler(Sampling(temperature=temperature, seed=seed), mask)
    closing = [tokenizer().token_to_id(mark) for mark in '"}]']
    while len(found) < most:
        logits = random.standard_normal(V, dtype=np.float32)
        logits[END], logits[closing] = 30.0, 0.2 * len(found)
        found.append(sampler(logits))
        if found[-1] == END:
            return found[:-1]
    raise AssertionError(f"no end after {most} tokens: {tokenizer().decode(found)!r}")


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_of_its_schema(tokens, seed):
    ids = drawn(tokens.mask("json_schema", json.dumps(PERSON)), seed)
    jsonschema.validate(json.loads(tokenizer().decode(ids)), PERSON)


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_matches_its_expression(tokens, seed):
    pattern = r"[A-Z][a-z]{2,9}, \d{4}-\d{2}"
    assert re.fullmatch(pattern, tokenizer().decode(drawn(tokens.mask("regex", pattern), seed)))


def test_an_answer_is_of_its_grammar(tokens):
    grammar = 'start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[1-9][0-9]?/'
    text = tokenizer().decode(drawn(tokens.mask("grammar", grammar), 1))
    assert re.fullmatch(r"[1-9]\d?(\+[1-9]\d?)*", text)


@pytest.mark.parametrize(("form", "text", "good", "bad"), [
    ("json_schema", '{"enum": ["a"]}', '"a"', '"b"'),
    ("regex", "[0-9]+", "12", "x"),
    ("grammar", 'start: "yes" | "no"', "no", "not"),
])  # fmt: skip
def test_the_form_begins_behind_a_thought(tokens, form, text, good, bad):
    """The thought is free, up to the first end of one; white space may follow."""

    def taken(answer: str) -> bool:
        mask = tokens.mask(form, text, end="</think>")
        for token in [*tokenizer().encode(answer).ids, END]:
            if np.isneginf(mask.apply(np.zeros(V, np.float32))[token]):
                return False
            mask.take(token)
        return True

    for thought in ("", "Hm.\n", f"<think> {bad} or {good}?\n\n", "<|im_end|"):
        assert taken(f"{thought}</think>\n\n{good}") and taken(f"{thought}</think>{good}")
        assert not taken(f"{thought}</think>\n\n{bad}") and not taken(thought + good)
        assert not taken(f"{thought}</think>{good}</think>{good}")


LARGE = 12345678901234567890
SCHEMAS_OF_NUMBERS = [
    {"const": 2**53}, {"const": -(2**63)}, {"enum": [1, {"id": [2**53 + 1]}]}, {"const": 1e300},
    {"type": "integer", "minimum": 2**53 + 1}, {"type": "integer", "maximum": LARGE},
    {"type": "integer", "exclusiveMinimum": 2**53}, {"exclusiveMaximum": -(2**53)},
    {"type": "integer", "multipleOf": LARGE}, {"anyOf": [{"type": "null"}, {"const": LARGE}]},
    {"type": "object", "properties": {"default": {"items": {"const": LARGE}}}},
    {"$defs": {"enum": {"const": LARGE}}, "$ref": "#/$defs/enum"},
    {"$ref": "#/default", "default": {"const": LARGE}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS_OF_NUMBERS, ids=json.dumps)
def test_a_number_that_would_be_rounded_is_refused_by_name(tokens, schema):
    reason = r": \w+ -?\d.* from 2\*\*53 on are rounded"
    with pytest.raises(InvalidInput, match="^json_schema" + reason):
        tokens.mask("json_schema", json.dumps(schema))
    with pytest.raises(InvalidInput, match="^grammar" + reason):
        tokens.mask("grammar", f'start: "a" %json{json.dumps(schema)} "b"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 2**31},
        {"allOf": [{"multipleOf": 9999}, {"multipleOf": 9998}], "type": "integer"},
        {"properties": {"a": {"type": "number", "multipleOf": 0.12345}}},
    ],
    ids=json.dumps,
)
def test_multiples_that_take_minutes_are_refused(tokens, schema):
    with pytest.raises(InvalidInput, match=r"multipleOf [\d.]+ cannot be held to"):
        tokens.mask("json_schema", json.dumps(schema))


def test_other_multiples_are_kept(tokens):
    parts = [{"multipleOf": n} for n in (9999, 1e6, 0.01)]
    tokens.mask("json_schema", json.dumps({"anyOf": [{"type": "number", **p} for p in parts]}))


@pytest.mark.parametrize("number", [2**53 - 1, 1 - 2**53, 2**63 - 1, 0, -1.5])
def test_other_numbers_are_kept_to_the_last_digit(tokens, number):
    schema = {"const": number, "default": LARGE, "examples": [LARGE]}
    ids = drawn(tokens.mask("json_schema", json.dumps(schema)), 0)
    assert tokenizer().decode(ids) == json.dumps(number)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b", "<|im_start|><|im_end|>"])
def test_the_text_of_a_special_token_is_text(tokens, text):
    """A schema may ask for it, and the answer spells it."""
    mask = tokens.mask("json_schema", json.dumps({"const": text}))
    assert json.loads(tokenizer().decode(drawn(mask, 0))) == text


def test_what_keeps_the_form_by_itself_is_left_as_it_is(tokens):
    """The likeliest tokens are those of the answer, and a form that it has takes none away."""
    text = '{"name": "Anna", "age": 31, "tags": ["b"]}'
    wanted = [*tokenizer().encode(text).ids, END]
    sampler = Sampler(Sampling(), tokens.mask("json_schema", json.dumps(PERSON)))
    for token in wanted:
        logits = np.random.default_rng(token).standard_normal(V, dtype=np.float32)
        logits[token] = 20.0
        assert sampler(logits) == token


def test_white_space_comes_to_an_end(tokens):
    """A model that wants nothing but line feeds writes 64 of them, and then goes on."""
    sampler = Sampler(Sampling(), tokens.mask("json_schema", json.dumps(PERSON)))
    logits = np.zeros(V, np.float32)
    logits[[i for i in range(V) if not tokenizer().decode([i]).strip(" \n")]] = 50.0
    text = tokenizer().decode([sampler(logits) for _ in range(200)])
    assert '"name"' in text and "\n" * 65 not in text


@pytest.mark.parametrize("end", ["", "</think>"])
def test_a_schema_may_be_nested_as_deep_as_a_request(tokens, end):
    schema = "true"
    for _ in range(DEEPEST):
        schema = f'{{"items": {schema}}}'
    tokens.mask("json_schema", schema, end)


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        ("json_schema", "{", "it is not JSON"),
        ("json_schema", "[" * 100_000, "it is not JSON"),
        ("json_schema", "true", "has to be an object"),
        ("json_schema", '{"uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"$ref": "http://somewhere/else"}', "somewhere"),
        ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
        ("json_schema", '{"$ref": "#"}', "refers to itself without end"),
        ("json_schema", '{"type": "string", "minLength": 2, "maxLength": 1}', "nsat"),
        ("json_schema", '{"a":' * 101 + "1" + "}" * 101, "more than 100 deep"),
        ("json_schema", json.dumps({"enum": ["x" * 200_000]}), "characters"),
        ("json_schema", '{"enum": ["\\ud800"]}', "hex escape"),
        ("regex", "(", "unclosed group"),
        ("regex", "x" * 400 + "[", "unclosed character class"),
        ("regex", "\ud800", "not valid text at character 0"),
        ("grammar", 'start: "\ud800"', "not valid text at character 8"),
        ("grammar", "start: nothing", "unknown name"),
        ("grammar", "%json", "grammar: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "</think>"])
def test_what_cannot_be_kept_is_refused_by_name(tokens, form, text, reason, end):
    with pytest.raises(InvalidInput, match=reason) as refused:
        tokens.mask(form, text, end)
    assert str(refused.value).startswith(f"{form}: ") and len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["((a{1,99}){1,99}){1,99}b", "(a|aa)*" * 500, "(.*x){200}"])
def test_an_expression_that_explodes_ends(tokens, text):
    """It is refused, or a step comes to an end: llguidance counts its own."""
    try:
        mask = tokens.mask("regex", text)
        sampler = Sampler(Sampling(temperature=1.0, seed=0), mask)
        for _ in range(20):
            sampler(np.zeros(V, np.float32))
    except InvalidInput as refused:
        assert str(refused).startswith("regex: ")


def test_a_form_is_compiled_once_and_no_answer_changes_another(tokens, monkeypatch):
    compiled = []
    monkeypatch.setattr(tokens, "_last", None)
    compiling = tokens._compiled
    noted = lambda *form: compiled.append(form) or compiling(*form)  # noqa: E731
    monkeypatch.setattr(tokens, "_compiled", noted)
    first = tokens.mask("regex", "(ab|cd)")
    first.take(tokenizer().encode("ab").ids[0])
    again = tokens.mask("regex", "(ab|cd)")
    fresh = np.isfinite(again.apply(np.zeros(V, np.float32)))
    assert fresh[tokenizer().encode("cd").ids[0]] and len(compiled) == 1
    tokens.mask("regex", "(ab|ce)")
    assert compiled[-1] == ("regex", "(ab|ce)", "") and len(compiled) == 2
    tokens.mask("regex", "(ab|ce)", end="</think>")
    assert compiled[-1] == ("regex", "(ab|ce)", "</think>") and len(compiled) == 3
