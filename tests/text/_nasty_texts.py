"""Damaged tokenizers and chat templates, by number: the same number, the same case."""

import copy
import json
from pathlib import Path
import random

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
        put = rng.choice(["", part * 2, part[::-1], NAMED[: 2 * len(part)], "{{", "%}", "'", "|"])
        template = template[:start] + put + template[stop:]
    return template


def case(number: int) -> tuple[str, object]:
    """("template", its text) or ("tokenizer", the bytes of its file)."""
    rng = random.Random(f"text {number}")
    if number % 2 == 0:
        return "template", garbled(rng.choice([CHATML, NAMED]), rng)
    return "tokenizer", mutated(rng.choice(base_tokenizers()), rng)


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
