"""A tokenizer.json as one file of tables, for programs that have no `tokenizers` library.

`packed_tokenizer` takes the JSON and gives the bytes of `tokenizer.bin`. What a tokenizer.json may
say is far more than the families of models here need: whatever is not one of their shapes is
refused by its name and value, never passed over.

The file is little-endian. It begins with the 8 bytes `ANETOK01` and a u32, the number of sections;
for each section follow 4 ASCII letters, its name, and two u32, where its bytes begin in the file
and how many they are. Sections begin at multiples of 4. Texts are UTF-8; a *list of texts* is two
sections: NAMEs last letter `o` holds the u32 places where each begins and a last one where all end,
and the same name with `b` the bytes.

    head   u32s: model (0 byte-level BPE, 1 BPE of characters, 2 WordPiece); id of the unknown
           token or 2^32 - 1; 1 if neighbouring unknowns become one; 1 if a character without a
           token becomes tokens of its bytes; the most characters of a word (WordPiece); how text
           is made of tokens (0: bytes joined, 1: tokens that stand for bytes are joined and shown
           as text only if all neighbours are valid together, 2: the first token differs);
           spaces taken off the beginning of a decoded text; how
           spaces become U+2581 (0 not, 1 as the text is normalised, 2 after that); how U+2581
           is put before a text (0 not, 1 each part, 2 each part without one, 3 the text's
           beginning without one); 1 if a word begins at a U+2581 that follows something else;
           1 if offsets leave out the white space around a token; 1 if there is a table of
           characters; 1 if it composes.
    toko/b the tokens by id. A byte-level one: its real bytes.
    tokf   a byte for each token: 1 it is in the model's vocabulary, 2 a word of just these bytes is
           this token, 4 special (decoding leaves it out), 8 it stands for one byte, 16 there is such
           a token.
    shoo/b the text of each token behind the first; empty lists where that is the token itself.
    pref   the prefix of the tokens within a word (WordPiece), as UTF-8.
    merg   three u32 for each merge in the order of rank: left id, right id, id of the result.
    addo/b the contents of the added tokens.
    addi   two u32 for each: id; 1 white space before belongs to it, 2 white space behind does,
           4 it is sought in the normalised text (and is normalised itself).
    befo, afte   u32 ids that go before and after a text with `add_special_tokens`.
    kinp, kinb   each character's kind, below 64: u16 for each 128 code points, the number of their
           block, and the blocks of 128 u8. Kinds are the classes of the patterns, cut apart.
    spac   two u32: the mask of the kinds that are white space for added tokens.
    spli   u32s: the patterns that split a text into words, one after another on what the former
           left. Number of patterns; for each: 1 if what no alternative matches is dropped; number
           of alternatives; for each: 1 if its match is dropped; number of items, tail's sequences;
           for each item: least and most (2^32 - 1: any) times, 1 for possessive or 2 for "not one
           of these follows", mask of kinds, low and high u32; for each sequence of the tail: its
           length, masks. An alternative is greedy and backtracks; then the first sequence of its
           tail that fits belongs to it, or none.
    firp/b, secp/b   u16 tables of characters like kinp and kinb with u16 blocks: 0 the character
           stays, 1 it comes between two spaces, otherwise the number of a text in chao/b, plus 2. `fir` comes before marks are put
           in order (and composed), `sec` after.
    marp/b like kinp/b: 128 if the character may change together with the one before it, plus its
           place among the combining classes, 0 for none.
    comp   three u32 a row, sorted: two characters and what they compose to.

Every table of characters was made by asking `tokenizers` about all of Unicode, for its versions of
Unicode are not those of Python or of a phone.
"""

from functools import cache
import json
import re
import struct

from ane_book.errors import UnsupportedModel
from ane_book.text.shapes import MARK, Shape, read_shape, refuse, token_id
import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

__all__ = ["packed_tokenizer"]

MAGIC = b"ANETOK01"
NONE = 0xFFFFFFFF
BLOCK = 128  # code points that share an entry of a table's first level
PLANES = 0x110000

#: A part of a regular expression in `splits`: a class or a character, and how often it comes.
ATOM = re.compile(
    r"(?P<group>\(\?i:(?P<choice>[^)]*)\)(?P<maybe>\??))|(?P<ahead>\(\?!\\S\))"
    r"|(?P<what>\[(?:\\.|[^\]\\])*\]|\\p\{\w+\}|\\.|[^\\|()])"
    r"(?:\{(?P<least>\d),(?P<most>\d)\}|(?P<often>[?*+])(?P<possessive>\+?))?|(?P<bar>\|)"
)
OFTEN = {None: (1, 1), "?": (0, 1), "*": (0, NONE), "+": (1, NONE)}


def packed_tokenizer(json_text: str) -> bytes:
    """The bytes of tokenizer.bin for the text of a tokenizer.json.

    Raises UnsupportedModel with one sentence that names the field and its value, for anything that
    is not of the shapes in `ane_book.text.shapes`, and for a file that is damaged.
    """
    try:
        file = json.loads(json_text)
        shape = read_shape(file)
        return _joined(_tokens(shape, file) | _splits(shape) | _characters(shape))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise UnsupportedModel(f"tokenizer.json is damaged: {error!r}"[:300]) from None


def _joined(sections: dict[str, bytes]) -> bytes:
    place, rows, body = len(MAGIC) + 4 + 12 * len(sections), [], []
    for name, data in sections.items():
        rows.append(struct.pack("<4sII", name.encode(), place, len(data)))
        body.append(data + bytes(-len(data) % 4))
        place += len(body[-1])
    return b"".join([MAGIC, struct.pack("<I", len(sections)), *rows, *body])


def _u32(values) -> bytes:
    return np.asarray(list(values), "<u4").tobytes()


def _texts(name: str, texts: list[bytes]) -> dict[str, bytes]:
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return {f"{name}o": _u32(ends), f"{name}b": b"".join(texts)}


# --- tokens


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte -> the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _real(token: str) -> bytes:
    """The bytes that a byte-level decoder makes of a token; its own if it is none of theirs."""
    alphabet = _alphabet()
    whole = all(character in alphabet for character in token)
    return bytes(alphabet[c] for c in token) if whole else token.encode()


def _tokens(shape: Shape, file: dict) -> dict[str, bytes]:
    model, added = file["model"], file.get("added_tokens") or []
    vocabulary: dict[str, int] = model["vocab"]
    merges = [tuple(m.split(" ") if type(m) is str else m) for m in model.get("merges", [])]
    for token, number in vocabulary.items():
        token_id(number, f"model.vocab, {token!r}")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise refuse("model.vocab, tokens with one id", "")
    unknown = model.get("unk_token", "[UNK]" if shape.model == "words" else None)
    if unknown is not None and unknown not in vocabulary:
        raise refuse("model.unk_token, not in the vocabulary,", unknown)
    fallback = bool(model.get("byte_fallback"))
    if fallback and not all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        raise refuse("model.byte_fallback without a token for each byte", True)
    if any(unknown in merge for merge in merges):
        raise refuse("model.merges of the unknown token", unknown)
    tokenizer = _tokenizer(file)
    strings = _all_tokens(vocabulary, added, tokenizer)
    inner = any(re.search(f"[^{MARK}]{MARK}", left + right) for left, right in merges)
    whole = _whole(shape, vocabulary, tokenizer.model)
    decoders = {"bytes": 0, "fallback": 1, "words": 2, "join": 2}
    head = [
        ("bytes", "characters", "words").index(shape.model),
        NONE if unknown is None else vocabulary[unknown],
        bool(model.get("fuse_unk")),
        fallback,
        _count(model.get("max_input_chars_per_word", 100)),
        decoders[shape.decoder],
        shape.strip,
        shape.spaces,
        shape.prepend,
        shape.model == "characters" and fallback and not inner,
        shape.trim,
        shape.compose or shape.bert is not None,
        shape.compose,
    ]
    hidden = {one["id"] for one in added if not tokenizer.decode([one["id"]])}
    flags, shown = bytearray(len(strings)), []
    for number, token in enumerate(strings):
        text = "" if token is None else token
        flags[number] |= 16 * (token is not None)
        if token in vocabulary:
            flags[number] |= 1 | 2 * (number in whole)
        flags[number] |= 4 * (number in hidden) + 8 * bool(
            shape.decoder == "fallback" and re.fullmatch("<0x[0-9A-Fa-f]{2}>", text)
        )
        shown.append(_shown(shape, text))
    real = _real if shape.model == "bytes" else str.encode
    return {
        "head": _u32(head),
        **_texts("tok", [real(token or "") for token in strings]),
        "tokf": bytes(flags),
        **_texts("sho", shown if shape.decoder != "bytes" else []),
        "pref": shape.prefix.encode(),
        "merg": _u32(vocabulary[text] for a, b in merges for text in (a, b, a + b)),
        **_texts("add", [one["content"].encode() for one in added]),
        "addi": _u32(number for one in added for number in (one["id"], _sides(one))),
        "befo": _u32(shape.before),
        "afte": _u32(shape.after),
    }


def _count(value) -> int:
    if type(value) is not int or not 0 <= value < NONE:
        raise refuse("model.max_input_chars_per_word", value)
    return value


def _tokenizer(file: dict) -> Tokenizer:
    """The file's tokens and normaliser alone, in `tokenizers`, to be asked."""
    others = dict.fromkeys(("pre_tokenizer", "post_processor", "decoder", "truncation", "padding"))
    try:
        return Tokenizer.from_str(json.dumps(file | others))
    except Exception as error:  # `tokenizers` raises this class itself
        raise UnsupportedModel(f"tokenizer.json is damaged: {error}"[:300]) from None


def _all_tokens(vocabulary: dict[str, int], added: list[dict], tokenizer) -> list[str | None]:
    """Every id's token as it is decoded; None for an id between that has none."""
    names = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
    strings: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, number in vocabulary.items():
        strings[number] = token
    for one in added:
        if set(one) != names or one["single_word"] or not one["content"]:
            raise refuse("added_tokens", one)
        number = token_id(one["id"], "added_tokens")
        if tokenizer.token_to_id(one["content"]) != number:
            raise refuse("added_tokens, an id out of order,", one)
        text = tokenizer.id_to_token(number)  # in its normalised form, if it is sought in that
        if vocabulary.get(one["content"], -1) == number and text != one["content"]:
            raise refuse("added_tokens, a token of the vocabulary that is normalised,", one)
        strings += [None] * (number + 1 - len(strings))
        strings[number] = text
    if len({one["content"] for one in added}) != len(added):
        raise refuse("added_tokens, two of one content", "")
    return strings


def _sides(added: dict) -> int:
    return added["lstrip"] + 2 * added["rstrip"] + 4 * added["normalized"]


def _whole(shape: Shape, vocabulary: dict[str, int], model) -> set[int]:
    """The ids of tokens that a word of the same text becomes: by merges, or with ignore_merges."""
    if shape.model == "words":
        return set(vocabulary.values())
    alphabet = _alphabet()
    found = set()
    for token, number in vocabulary.items():
        possible = token and (shape.model != "bytes" or all(c in alphabet for c in token))
        if possible and [one.id for one in model.tokenize(token)] == [number]:
            found.add(number)
    return found


CLEANUP = [(f" {end}", end) for end in (".", "?", "!", ",")] + [
    (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" do not", " don't"),
    (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
]  # fmt: skip


def _shown(shape: Shape, token: str) -> bytes:
    """A token's text behind the first, as the decoder has it."""
    if shape.decoder == "fallback":
        if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
            return bytes([int(token[3:5], 16)])
        return token.replace(MARK, " ").encode()
    if shape.decoder == "bytes":
        return b""
    if shape.decoder == "words" and token.startswith(shape.prefix):
        text = token.replace(shape.prefix, "", 1)
    else:
        text = " " + token
    if shape.cleanup:
        if any(old in token for old, _ in CLEANUP):
            raise refuse("decoder.WordPiece.cleanup of a token", token)
        for old, new in CLEANUP:
            text = text.replace(old, new)
    return text.encode()


# --- patterns


@cache
def _all() -> str:
    """Every character there is, in order; surrogates are none."""
    return "".join(chr(c) for c in range(PLANES) if not 0xD800 <= c < 0xE000)


def _at(mask: np.ndarray) -> np.ndarray:
    """Values for the characters of `_all` as values for all code points."""
    return np.insert(mask, 0xD800, np.zeros(0x800, mask.dtype))


@cache
def _matching(pattern: str) -> np.ndarray:
    """Which code points a regular expression for one character matches, as `tokenizers` has it."""
    if pattern in ("DIGIT", "PUNCTUATION", "SPACE"):
        return _splitting(pattern)
    mark = "\uffff"
    replaced = normalizers.Replace(Regex(pattern), mark).normalize_str(_all())
    alone = normalizers.Replace(Regex(pattern), "").normalize_str(mark) == ""
    found = _scalars(replaced) != _scalars(_all())
    found[ord(mark) - 0x800] = alone
    return _at(found)


def _scalars(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _splitting(name: str) -> np.ndarray:
    """Which code points a pre-tokenizer of this name cuts out of a text."""
    cut = {
        "DIGIT": pre_tokenizers.Digits(individual_digits=False),
        "PUNCTUATION": pre_tokenizers.Punctuation("contiguous"),
        "SPACE": pre_tokenizers.WhitespaceSplit(),
    }[name]
    found = np.zeros(len(_all()), bool)
    if name == "SPACE":
        found[:] = True
    for index, (_, (start, end)) in enumerate(cut.pre_tokenize_str(_all())):
        # Pieces take turns: U+0000 begins one that is neither digits nor punctuation.
        found[start:end] = name != "SPACE" and index % 2 == 1
    return _at(found)


#: Patterns that are pre-tokenizers of their own: alternatives of (class, least, most), and whether
#: what matches is dropped.
OWN = {
    "DIGIT": [([("DIGIT", 1, 1, 0)], [], False)],
    "DIGIT+": [([("DIGIT", 1, NONE, 0)], [], False)],
    "BERT": [([("SPACE", 1, NONE, 0)], [], True), ([("PUNCTUATION", 1, 1, 0)], [], False)],
}


def _alternatives(pattern: str) -> list[tuple[list, list, bool]]:
    """A pattern as alternatives: items (class, least, most, flags), sequences of the tail."""
    if pattern in OWN:
        return OWN[pattern]
    result: list[tuple[list, list, bool]] = []
    branches: list[list] = [[]]
    tail: list[list[str]] = []
    place = 0
    while place <= len(pattern):
        match = ATOM.match(pattern, place)
        if match is None and place < len(pattern):
            raise refuse("pre_tokenizer.Split.pattern", pattern)
        if match is None or match["bar"]:
            result += [(items, tail, False) for items in branches]
            branches, tail = [[]], []
        elif match["group"]:
            words = [_word(word) for word in match["choice"].split("|")]
            if match["maybe"]:
                tail = words
            else:
                branches = [b + [(c, 1, 1, 0) for c in w] for b in branches for w in words]
        else:
            branches = [[*items, _item(match)] for items in branches]
        place = len(pattern) + 1 if match is None else match.end()
    return result


def _word(text: str) -> list[str]:
    """The classes of a group's characters, whose case does not count."""
    return [f"(?i:{one})" for one in re.findall(r"\[[^\]]*\]|.", text)]


def _item(match: re.Match) -> tuple[str, int, int, int]:
    if match["ahead"]:
        return r"\S", 1, 1, 2
    least, most = OFTEN[match["often"]]
    if match["least"]:
        least, most = int(match["least"]), int(match["most"])
    return match["what"], least, most, int(bool(match["possessive"]))


def _splits(shape: Shape) -> dict[str, bytes]:
    stages = [(_alternatives(pattern), gaps) for pattern, gaps in shape.splits]
    classes = {"SPACE"}
    for alternatives, _ in stages:
        for items, tail, _ in alternatives:
            classes |= {item[0] for item in items} | {one for word in tail for one in word}
    names = sorted(classes)
    members = np.zeros(PLANES, np.int64)
    for bit, name in enumerate(names):
        members |= _matching(name).astype(np.int64) << bit
    kinds, kind = np.unique(members, return_inverse=True)
    if len(kinds) > 64:
        raise refuse("pre_tokenizer, kinds of characters", len(kinds))

    def mask(name: str) -> list[int]:
        bits = sum(1 << i for i, k in enumerate(kinds) if int(k) >> names.index(name) & 1)
        return [bits & NONE, bits >> 32]

    words = [len(stages)]
    for alternatives, gaps in stages:
        words += [gaps, len(alternatives)]
        for items, tail, dropped in alternatives:
            words += [dropped, len(items), len(tail)]
            for name, least, most, flags in items:
                words += [least, most, flags, *mask(name)]
            for word in tail:
                words += [len(word), *(half for name in word for half in mask(name))]
    table = _table("kin", kind.reshape(-1).astype(np.uint8))
    return table | {"spac": _u32(mask("SPACE")), "spli": _u32(words)}


def _table(name: str, values: np.ndarray) -> dict[str, bytes]:
    """A table of all code points, each block of 128 that is like another kept once."""
    blocks, pages = np.unique(values.reshape(-1, BLOCK), axis=0, return_inverse=True)
    kept = blocks.astype(blocks.dtype.newbyteorder("<")).tobytes()
    return {f"{name}p": pages.reshape(-1).astype("<u2").tobytes(), f"{name}b": kept}


# --- normalisation

FENCE = "qzq"  # between the characters that a normaliser is asked about; it leaves it alone


def _mapped(normalizer) -> list[str]:
    """What a normaliser makes of each character alone, in the order of `_all`."""
    return normalizer.normalize_str(FENCE.join(_all()) + FENCE).split(FENCE)[:-1]


def _characters(shape: Shape) -> dict[str, bytes]:
    """The tables of the normaliser, if it changes more than spaces."""
    if not shape.compose and shape.bert is None:
        return {}
    first: list = []
    second: list[str] = []
    if shape.bert is not None:
        flags = shape.bert
        clean = flags | {"strip_accents": False, "lowercase": False}
        first = [normalizers.BertNormalizer(**clean)]
        folded = {"clean_text": False, "handle_chinese_chars": False}
        second = _mapped(normalizers.BertNormalizer(**flags | folded))
    ordered = shape.compose or shape.bert["strip_accents"]
    if ordered:
        first.append(normalizers.NFD())
    forms = _mapped(normalizers.Sequence(first))
    ranks = _ranks() if ordered else {}
    pairs = _pairs(forms) if shape.compose else []
    joins = {one for _, one, _ in pairs}
    if shape.compose:
        composed = _mapped(normalizers.NFC())
        joins |= {c for c, form in zip(_all(), composed, strict=True) if c != form}
    marks = np.zeros(len(_all()), np.uint8)
    for index, (character, form) in enumerate(zip(_all(), forms, strict=True)):
        together = not form or form[0] in ranks or character in joins
        marks[index] = 128 * together + ranks.get(character, 0)
    texts: dict[str, int] = {}
    tables = {**_changes("fir", forms, texts), **_changes("sec", second, texts)}
    rows = sorted(tuple(map(ord, row)) for row in pairs)
    return {
        **tables,
        **_texts("cha", [text.encode() for text in texts]),
        **_table("mar", _at(marks)),
        "comp": _u32(number for row in rows for number in row),
    }


def _changes(name: str, forms: list[str], texts: dict[str, int]) -> dict[str, bytes]:
    numbers = np.zeros(len(_all()), np.uint16)
    for index, (character, form) in enumerate(zip(_all(), forms, strict=bool(forms))):
        if form == f" {character} ":
            numbers[index] = 1
        elif form != character:
            numbers[index] = texts.setdefault(form, len(texts)) + 2
    return _table(name, _at(numbers))


@cache
def _ranks() -> dict[str, int]:
    """The marks that are put in order, and the place of each one's class among all, from 1."""
    form = normalizers.NFD().normalize_str

    def later(marks: list[str], behind: list[str]) -> list[bool]:
        """Of a mark and one behind it: whether they change places."""
        pairs = [a + b for a, b in zip(marks, behind, strict=True)]
        texts = form(FENCE.join(pairs)).split(FENCE)
        return [text == b + a for text, a, b in zip(texts, marks, behind, strict=True)]

    kept = [c for c, text in zip(_all(), _mapped(normalizers.NFD()), strict=True) if c == text]
    low, high = ["\u0334"] * len(kept), ["\u0345"] * len(kept)  # of the first and the last class
    moved = zip(kept, later(kept, low), later(high, kept), strict=True)
    marks = [c for c, down, up in moved if down or up]
    before = {
        mark: sum(later([mark] * len(marks), marks)) for mark in marks
    }  # how many are of an earlier class
    classes = sorted(set(before.values()))
    return {mark: classes.index(count) + 1 for mark, count in before.items()}


def _pairs(forms: list[str]) -> list[tuple[str, str, str]]:
    """Two characters and what NFC composes them to."""
    form = normalizers.NFC().normalize_str
    composed = _mapped(normalizers.NFC())
    rows = zip(_all(), forms, composed, strict=True)
    whole = [(c, text) for c, text, kept in rows if c == kept != text]
    starts = form(FENCE.join(text[:-1] for _, text in whole)).split(FENCE)
    return [(start, text[-1], c) for start, (c, text) in zip(starts, whole, strict=True)]
