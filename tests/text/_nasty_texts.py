"""Damaged and hostile tokenizers and chat templates, by number: the same number, the same case.

python tests/text/_nasty_texts.py 500       runs so many, and prints what came of them
"""

from collections import Counter
import copy
import json
from pathlib import Path
import random
import sys
import tempfile
import time

from ane_book.errors import InvalidInput
from ane_book.text.process import TextProcess
from ane_book.text.template import render
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXT = "What is <b>the</b> capital of   France? 123 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! café 🙂"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMED = (
    "{%- set ns = namespace(n=0) %}{%- for m in messages if m.role != 'tool' %}"
    "{%- set ns.n = ns.n + 1 %}{{ m.role | upper }}[{{ ns.n }}]: {{ m.content | trim }}\n"
    "{%- if loop.last %}{{ m | tojson(indent=2) }}{% endif %}{% endfor %}"
    "{% macro end(x) %}{{ x ~ eos_token }}{% endmacro %}{{ end('a') }}"
)

#: Each would run for years, take all memory, or fail in a way of its own.
TEMPLATES = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 9 ** 99999999 }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 'a' * 10 ** 12 }}",
    "{{ 'a\nb' | indent(1000000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ {'a': [1]} | tojson(indent=1000000000) }}",
    "{{ lipsum(n=100000000) }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=['ab']) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}{{ ns.s | join }}",
    "{{ range(99999) | map('string') | join('a' * 99999) }}",
    "{{ 'ab'.replace('', 'c' * 99999).replace('c', 'd' * 99999) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ 1 / 0 }}",
    "{{ [][0] }}{{ {}.x.y }}",
    "{{ 'a' + 1 }}",
    "{{ 'x'.encode('utf-99') }}",
    "{{ 'a' | int(base=99) }}",
    "{{ '%d' % 'a' }}",
    "{{ 1 | batch(0) | list }}",
    "{{ [1, 'a'] | sort }}",
    "{{ {}['a'] | round(99, 'z') }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ raise_exception('no' * 1000000) }}",
    "{{ raise_exception() }}",
    "{{ cycler().next() }}",
    "{% include 'other' %}",
    "{% extends 'other' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ messages.clear() }}",
    "{{ '\\ud800' }}",
    "{{ '\x1b]0;title\x07' }}",
    "{{ ('a' * 5000) | int }}",
    "{{ ('1' * 5000) | int }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 100000 + "1 }}",
    "{{ " + "[" * 300 + "]" * 300 + " }}",
    "{% if a %}" * 200 + "{% endif %}" * 200,
    "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "{{ " + "1+" * 20000 + "1 }}",
    "{{ 'a' ~ " * 3000 + "1",
    "{# " * 100000,
    "{{ x" + ".y" * 50000 + " }}",
    "{{ (range(99999) | list) | tojson | length }}" * 200,
    "{{ 'a' | wordwrap(0) }}",
    "{{ ('a' * 99999) | wordwrap(1, wrapstring='b' * 99999) }}",
    "{{ ('www.' * 30000) | urlize }}",
    "{{ messages | map(attribute='a.b.c') | list }}",
    "{{ joiner('x' * 10 ** 9)() }}",
    "{{ 'a'.ljust(10 ** 10) }}{{ 'a'.zfill(10 ** 10) }}",
    "{{ '\t'.expandtabs(10 ** 10) }}",
    "{{ 1 << 10 ** 12 }}",
    "{{ none() }}{{ undefined.x }}",
    "",
    "{%",
    "{{ '{% endfor %}' }}{% endfor %}",
]


def base_tokenizers() -> list[dict]:
    """Sound tokenizers of each kind, as tokenizer.json has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate([*alphabet, "aa", "Ġt", "he"])}
    bpe = Tokenizer(models.BPE(vocabulary, [("a", "a"), ("Ġ", "t"), ("h", "e")]))
    bpe.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("  ", " ")])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    pieces = [
        ("<unk>", 0.0),
        *((c, -float(i)) for i, c in enumerate("▁ abcdefghijklmnopqrstuvwxyz")),
    ]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    words = {"[UNK]": 0, "what": 1, "is": 2, "##s": 3, "the": 4, "a": 5, "##a": 6}
    wordpiece = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer()
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.decoder = decoders.WordPiece()
    for tokenizer in (bpe, unigram, wordpiece):
        tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return [json.loads(t.to_str()) for t in (bpe, unigram, wordpiece)]


def replace(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str) -> dict:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern},
                              "behavior": "Isolated", "invert": False}}  # fmt: skip


#: Fields of a tokenizer.json that make a sound one slow, large or broken.
TOKENIZERS = [
    {"normalizer": {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa" * 50)] * 9}},
    {"normalizer": {"type": "Sequence", "normalizers": [replace({"Regex": ""}, "ab")] * 40}},
    {"normalizer": {"type": "Prepend", "prepend": "x" * 10_000_000}},
    {"normalizer": replace({"Regex": "(a+)+$"}, "b")},
    {"normalizer": replace({"Regex": "("}, "b")},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    {"normalizer": {"type": "Strip", "strip_left": 1, "strip_right": None}},
    split("(a|aa)+$"),
    split("(?:a?){30}a{30}"),
    split("((a{1,100}){1,100}){1,100}"),
    split("(?=(a+))*\\1*b"),
    split("(" * 3000 + ")" * 3000),
    split("[\\p{L}"),
    split("(?<n>a\\g<n>)"),
    {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst",
                    "stride": 0}},
    {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst",
                    "stride": 99}},
    {"padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    {"padding": {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 0,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    {"post_processor": {"type": "TemplateProcessing", "pair": [],
                        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 200_000,
                        "special_tokens": {}}},
    {"post_processor": {"type": "TemplateProcessing", "pair": [],
                        "single": [{"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {}}},
    {"post_processor": {"type": "RobertaProcessing", "sep": ["x", 1], "cls": ["y", 10**9],
                        "trim_offsets": True, "add_prefix_space": True}},
    {"decoder": {"type": "Sequence", "decoders": [replace({"String": ""}, "ab" * 9)] * 9}},
    {"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "aa" * 50)] * 9}},
    {"decoder": {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18}},
    {"decoder": {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}},
    {"decoder": replace({"Regex": "(a|aa)+$"}, "b")},
    {"added_tokens": [{"id": 10**9, "content": "a", "single_word": False, "lstrip": False,
                       "rstrip": False, "normalized": True, "special": True}]},
    {"added_tokens": [{"id": i, "content": "", "single_word": True, "lstrip": True,
                       "rstrip": True, "normalized": True, "special": False} for i in range(99)]},
    {"model": {"type": "Unigram", "unk_id": 99, "vocab": [["a", -1.0]]}},
    {"model": {"type": "Unigram", "unk_id": None, "vocab": []}},
    {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 1e308], ["a", -1e308]]}},
    {"model": {"type": "WordPiece", "unk_token": "no", "continuing_subword_prefix": "",
               "max_input_chars_per_word": 10**18, "vocab": {"": 0}}},
    {"model": {"type": "WordLevel", "unk_token": "no", "vocab": {}}},
    {"model": {"type": "BPE", "dropout": 2.0, "vocab": {"a": 0}, "merges": []}},
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}},
    {"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}},
    {"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": ["a", "", "a b c"]}},
    {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    {"pre_tokenizer": {"type": "Punctuation", "behavior": "Nothing"}},
]  # fmt: skip

#: Whole files that are no tokenizer.
FILES = [
    b"", b"{}", b"[]", b"null", b"\x00" * 1000, b"\xff\xfe{", b"{" * 200_000, b"[" * 5_000_000,
    b'{"a":' * 100_000, b'"' + b"a" * 10_000_000, b'{"model": {"type": "BPE"}}',
    b'{"normalizer":' + b'{"type":"Sequence","normalizers":[' * 5000,
]  # fmt: skip

VALUES = [None, True, -1, 0, 2**31, 10**18, 1e308, "", "a", "a" * 100_000, "\x00", [], {}, [[]],
          "(a+)+$", {"Regex": "(a|aa)+$"}, {"type": "Sequence"}]  # fmt: skip


def nodes(value: object) -> list[tuple[object, object]]:
    """Every (container, key) of a JSON value, but of long lists and objects their first ones."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value if isinstance(value, dict) else range(len(value)))[:20]
    return [(value, key) for key in keys] + [n for key in keys for n in nodes(value[key])]


def near(value: object) -> object:
    """Another value of the same type, which may well be sound."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + "e" if isinstance(value, str) else value


def mutated(tokenizer: dict, rng: random.Random) -> bytes:
    """A sound tokenizer.json with some values exchanged or gone, or its bytes damaged."""
    tokenizer = copy.deepcopy(tokenizer)
    for _ in range(rng.choice([1, 1, 2, 4])):
        container, key = rng.choice(nodes(tokenizer))
        if rng.random() < 0.6:
            container[key] = near(container[key])
        elif rng.random() < 0.3:
            del container[key]
        else:
            container[key] = copy.deepcopy(rng.choice(VALUES))
    if rng.random() < 0.2:
        tokenizer |= copy.deepcopy(rng.choice(TOKENIZERS))
    data = bytearray(json.dumps(tokenizer).encode())
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.1:
        for _ in range(rng.choice([1, 5, 50])):
            data[rng.randrange(len(data) or 1)] = rng.randrange(256) if data else 0
    return bytes(data)


def garbled(template: str, rng: random.Random) -> str:
    """A sound template with parts gone, doubled, moved, or a hostile one put in."""
    for _ in range(rng.choice([1, 2, 4])):
        start, stop = sorted(rng.randrange(len(template) + 1) for _ in range(2))
        stop = min(stop, start + 30)
        part = template[start:stop]
        put = rng.choice(["", part * 2, part[::-1], rng.choice(TEMPLATES), "{{", "%}", "'", "|"])
        template = template[:start] + put + template[stop:]
    return template


def case(number: int) -> tuple[str, object]:
    """("template", its text) or ("tokenizer", the bytes of its file)."""
    rng, kind, at = random.Random(f"text {number}"), number % 2, number // 2
    if kind == 0:
        return "template", (TEMPLATES[at] if at < len(TEMPLATES) else
                            garbled(rng.choice([CHATML, NAMED, *TEMPLATES]), rng))  # fmt: skip
    bases = base_tokenizers()
    if at < len(TOKENIZERS):
        return "tokenizer", json.dumps(bases[0] | TOKENIZERS[at]).encode()
    if at < len(TOKENIZERS) + len(FILES):
        return "tokenizer", FILES[at - len(TOKENIZERS)]
    return "tokenizer", mutated(rng.choice(bases), rng)


def attempt(number: int, words: TextProcess, file: Path) -> str:
    """What came of a case: a right answer, or the beginning of one clean error.

    Raises AssertionError for a wrong answer, and whatever else escapes.
    """
    kind, damaged = case(number)
    try:
        if kind == "template":
            found = words.render(damaged, MESSAGES, eos_token="</s>")
            assert found == render(damaged, MESSAGES, eos_token="</s>")
            return "template: right"
        file.write_bytes(damaged)
        words.load(file)
        ids = words.encode(TEXT, True)
        texts = words.decode_batch([ids, ids[:3]])
    except InvalidInput as error:
        message = str(error)
        assert len(message) <= 700, message
        return f"{kind}: {'limit' if 'took' in message or 'broke' in message else 'refused'}"
    ours = Tokenizer.from_file(str(file))
    ours.no_truncation()
    ours.no_padding()
    assert ids == ours.encode(TEXT).ids
    vocabulary = ours.get_vocab().values()
    if len(set(vocabulary)) == len(vocabulary):  # of two tokens with one id, chance decodes one
        assert texts == [ours.decode(ids), ours.decode(ids[:3])]
    return "tokenizer: right"


def main(cases: int) -> None:
    words, found, slowest = TextProcess(), Counter(), (0.0, 0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            start = time.perf_counter()
            found[attempt(number, words, Path(folder) / "tokenizer.json")] += 1
            slowest = max(slowest, (round(time.perf_counter() - start, 2), number))
    print(json.dumps({"cases": cases, **dict(found.most_common()), "slowest": slowest}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
