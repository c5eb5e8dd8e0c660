"""Which shape a tokenizer.json has: the families of models here, and nothing else.

A field that is not in the tables below, or has another value, is refused by its name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ane_book.errors import UnsupportedModel, printable
from ane_book.weights import gguf_tokenizer
from ane_book.weights.gguf_tokenizer import MARK

#: The regular expressions that may split a text, by the name of who uses them first. Each is
#: written as in the family's tokenizer.json.
SPLITS = gguf_tokenizer.SPLITS | {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "privacy-small": r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+",
}


@dataclass
class Shape:
    """What a tokenizer.json says, apart from its tokens and merges."""

    model: str  # bytes, characters or words
    splits: list[tuple[str, bool]] = field(default_factory=list)  # pattern, whether gaps are lost
    compose: bool = False  # NFC
    bert: dict[str, bool] | None = None  # BertNormalizer's flags
    spaces: int = 0  # they become MARK: 1 in the normaliser, 2 behind it
    prepend: int = 0  # as in the head of tokenizer.bin
    trim: bool = False  # offsets leave out white space around
    prefix: str = ""  # of tokens within a word
    decoder: str = "join"  # bytes, fallback, words or join
    cleanup: bool = False
    strip: int = 0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


ANY = object()


def refuse(where: str, value) -> UnsupportedModel:
    shown = printable(repr(value))[:200]
    return UnsupportedModel(f"tokenizer.json: {where} {shown} has no place in tokenizer.bin")


def only(part, where: str, **values) -> dict:
    """A part of the file whose every field but `type` has one of the values that stand here."""
    if not isinstance(part, dict):
        raise refuse(where, part)
    for name, value in part.items():
        allowed: Any = ANY if name == "type" else values.get(name, ())
        if allowed is not ANY and not any(type(value) is type(v) and value == v for v in allowed):
            raise refuse(f"{where}.{name}", value)
    return part


def parts(part, where: str, inner: str) -> list[dict]:
    """The members of a Sequence, or the part itself; an empty list for null."""
    if part is None:
        return []
    if isinstance(part, dict) and part.get("type") == "Sequence":
        members = only(part, where, **{inner: ANY}).get(inner)
        if not isinstance(members, list):
            raise refuse(f"{where}.{inner}", members)
        return [one for member in members for one in parts(member, where, inner)]
    return [part]


def kind(part, where: str) -> str:
    name = part.get("type") if isinstance(part, dict) else part
    if not isinstance(name, str):
        raise refuse(where, part)
    return name


BOTH, NO, YES = (True, False), (False,), (True,)


def read_shape(file: dict) -> Shape:
    """Read all of a tokenizer.json but its tokens; UnsupportedModel names what is not known."""
    only(
        file,
        "file",
        version=("1.0",),
        **dict.fromkeys(("truncation", "padding", "added_tokens", "normalizer"), ANY),
        **dict.fromkeys(("pre_tokenizer", "post_processor", "decoder", "model"), ANY),
    )
    shape = Shape(model=_model(file.get("model")))
    if shape.model == "words":
        shape.prefix = file["model"].get("continuing_subword_prefix", "##")
    for part in parts(file.get("normalizer"), "normalizer", "normalizers"):
        _normalizer(shape, part)
    tokenized = False
    for part in parts(file.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"):
        if tokenized:
            raise refuse("pre_tokenizer after ByteLevel", part)
        tokenized = _pre_tokenizer(shape, part)
    for part in parts(file.get("post_processor"), "post_processor", "processors"):
        _post_processor(shape, part)
    _decoder(shape, parts(file.get("decoder"), "decoder", "decoders"))
    if tokenized:
        if shape.model != "characters" or shape.spaces:
            raise refuse("pre_tokenizer", "ByteLevel")
        shape.model = "bytes"
    if (shape.decoder == "bytes") != (shape.model == "bytes"):
        raise refuse("decoder", file.get("decoder"))
    if (shape.bert is not None) and (shape.compose or shape.spaces or shape.model != "words"):
        raise refuse("normalizer", file.get("normalizer"))
    return shape


def _model(model) -> str:
    name = kind(model, "model")
    if name == "BPE":
        only(
            model,
            "model.BPE",
            dropout=(None, 0.0),
            continuing_subword_prefix=(None, ""),
            end_of_word_suffix=(None, ""),
            fuse_unk=BOTH,
            byte_fallback=BOTH,
            ignore_merges=BOTH,
            **dict.fromkeys(("unk_token", "vocab", "merges"), ANY),
        )
        return "characters"
    if name == "WordPiece":
        fields = ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab")
        only(model, "model.WordPiece", **dict.fromkeys(fields, ANY))
        return "words"
    raise refuse("model", name)


def _normalizer(shape: Shape, part) -> None:
    name = kind(part, "normalizer")
    where = f"normalizer.{name}"
    if name == "NFC" and not (shape.spaces or shape.prepend):
        only(part, where)
        shape.compose = True
    elif name == "BertNormalizer":
        flags = ("clean_text", "handle_chinese_chars", "lowercase")
        only(part, where, strip_accents=(*BOTH, None), **dict.fromkeys(flags, BOTH))
        shape.bert = {flag: part.get(flag, True) for flag in flags}
        strip = part.get("strip_accents")
        shape.bert["strip_accents"] = shape.bert["lowercase"] if strip is None else strip
    elif name == "Prepend" and not shape.spaces:
        only(part, where, prepend=(MARK,))
        shape.prepend = 1
    elif name == "Replace":
        only(part, where, pattern=({"String": " "},), content=(MARK,))
        shape.spaces = 1
    else:
        raise refuse("normalizer", part)


def _pre_tokenizer(shape: Shape, part) -> bool:
    """Take note of a pre-tokenizer; whether it is ByteLevel, behind which there is none."""
    name = kind(part, "pre_tokenizer")
    where = f"pre_tokenizer.{name}"
    if name == "ByteLevel":
        only(part, where, add_prefix_space=NO, trim_offsets=BOTH, use_regex=BOTH)
        if part.get("use_regex", True):
            shape.splits.append((SPLITS["gpt2"], False))
        return True
    if name == "Split" and part.get("pattern") == {"String": " "} and shape.spaces:
        # No space is left to split at.
        only(part, where, pattern=ANY, behavior=("MergedWithPrevious",), invert=NO)
    elif name == "Split":
        pattern = part.get("pattern")
        if pattern not in [{"Regex": regex} for regex in SPLITS.values()]:
            raise refuse(f"{where}.pattern", pattern)
        only(part, where, pattern=ANY, behavior=("Isolated", "Removed"), invert=BOTH)
        if (part.get("behavior"), part.get("invert")) not in (
            ("Isolated", False),
            ("Removed", True),
        ):
            raise refuse(f"{where}.invert", part.get("invert"))
        shape.splits.append((pattern["Regex"], part["invert"]))
    elif name == "Digits":
        only(part, where, individual_digits=BOTH)
        shape.splits.append(("DIGIT" if part.get("individual_digits") else "DIGIT+", False))
    elif name == "BertPreTokenizer":
        only(part, where)
        shape.splits.append(("BERT", False))
    elif name == "Metaspace" and not shape.spaces:
        schemes = {"never": 0, "always": 2, "first": 3}
        only(part, where, replacement=(MARK,), prepend_scheme=tuple(schemes), split=NO)
        if "split" not in part:
            raise refuse(f"{where}.split", True)
        shape.spaces, shape.prepend = 2, schemes[part.get("prepend_scheme", "always")]
    else:
        raise refuse("pre_tokenizer", part)
    return False


def _post_processor(shape: Shape, part) -> None:
    name = kind(part, "post_processor")
    where = f"post_processor.{name}"
    before, after = [], []
    if name == "ByteLevel":
        only(part, where, add_prefix_space=BOTH, trim_offsets=BOTH, use_regex=BOTH)
        shape.trim = shape.trim or part.get("trim_offsets", True)
    elif name in ("BertProcessing", "RobertaProcessing"):
        fields = {"trim_offsets": BOTH, "add_prefix_space": BOTH} if name[0] == "R" else {}
        only(part, where, sep=ANY, cls=ANY, **fields)
        shape.trim = shape.trim or bool(fields and part.get("trim_offsets", True))
        before, after = ([token_id(part[end][1], where)] for end in ("cls", "sep"))
    elif name == "TemplateProcessing":
        only(part, where, single=ANY, pair=ANY, special_tokens=ANY)
        before, after = _template(part, where)
    else:
        raise refuse("post_processor", part)
    shape.before, shape.after = before + shape.before, shape.after + after


def token_id(value, where: str) -> int:
    """An id that is one: a damaged file's may be anything, or fill the memory."""
    if type(value) is not int or not 0 <= value < 1 << 24:
        raise refuse(f"{where}, an id", value)
    return value


def _template(part: dict, where: str) -> tuple[list[int], list[int]]:
    """The ids before and after the text in a template for one sequence."""
    sides: list[list[int]] = [[]]
    for piece in part["single"]:
        if list(piece) == ["Sequence"]:
            if piece["Sequence"].get("id") != "A":
                raise refuse(f"{where}.single", part["single"])
            sides.append([])
        elif list(piece) == ["SpecialToken"]:
            ids = part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            sides[-1] += [token_id(one, where) for one in ids]
        else:
            raise refuse(f"{where}.single", part["single"])
    if len(sides) != 2:
        raise refuse(f"{where}.single", part["single"])
    return sides[0], sides[1]


def _decoder(shape: Shape, members: list) -> None:
    names = [kind(part, "decoder") for part in members]
    checks: dict[str, Callable[[dict], dict]] = {
        "Replace": lambda p: only(p, "decoder", pattern=({"String": MARK},), content=(" ",)),
        "ByteFallback": lambda p: only(p, "decoder.ByteFallback"),
        "Fuse": lambda p: only(p, "decoder.Fuse"),
        "Strip": lambda p: only(p, "decoder", content=(" ",), start=(0, 1), stop=(0,)),
        "ByteLevel": lambda p: only(
            p, "decoder", add_prefix_space=BOTH, trim_offsets=BOTH, use_regex=BOTH
        ),
        "WordPiece": lambda p: only(p, "decoder", prefix=ANY, cleanup=BOTH),
    }
    known = {
        (): "join",
        ("ByteLevel",): "bytes",
        ("WordPiece",): "words",
        ("Replace", "ByteFallback", "Fuse"): "fallback",
        ("Replace", "ByteFallback", "Fuse", "Strip"): "fallback",
    }
    if tuple(names) not in known:
        raise refuse("decoder", names)
    for name, part in zip(names, members, strict=True):
        checks[name](part)
    shape.decoder = known[tuple(names)]
    if shape.decoder == "words":
        shape.cleanup = members[0].get("cleanup", True)
        if members[0].get("prefix", "##") != shape.prefix:
            raise refuse("decoder.WordPiece.prefix", members[0].get("prefix"))
    if names[-1:] == ["Strip"]:
        shape.strip = members[-1].get("start", 0)
