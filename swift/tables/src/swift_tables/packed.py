"""A tokenizer.json as one file of tables, for programs that have no `tokenizers` library.

`packed_tokenizer` takes the JSON and gives the bytes of `tokenizer.bin`. What a tokenizer.json may
say is far more than the families of models here need: whatever is not one of their shapes is
refused by its name and value, never passed over.

The file is little-endian. It begins with the 8 bytes `ANETOK01` and a u32, the number of sections;
for each section follow 4 ASCII letters, its name, and two u32, where its bytes begin in the file
and how many they are. Sections begin at multiples of 4. Texts are UTF-8; a *list of texts* is two
sections: a name with a last letter `o` holds the u32 places where each begins and, last, where
all end, and the same name with `b` the bytes.

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
    tokf   a byte for each token: 1 it is in the model's vocabulary, 2 a word of just these bytes
           is this token, 4 special (decoding leaves it out), 8 it stands for one byte, 16 there
           is such a token.
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
    firp/b, secp/b   tables of characters like kinp and kinb with blocks of 128 u16: 0 the
           character stays, 1 it comes between two spaces, otherwise the number of a text in
           chao/b, plus 2. `fir` comes before marks are put in order (and composed), `sec` after.
    marp/b like kinp/b: 128 if the character may change together with the one before it, plus its
           place among the combining classes, 0 for none.
    comp   three u32 a row, sorted: two characters and what they compose to.

Every table of characters was made by asking `tokenizers` about all of Unicode, for its versions of
Unicode are not those of Python or of a phone.
"""

from functools import lru_cache
import json
import re
import struct

from ane_book.errors import UnsupportedModel
from ane_book.text.token_bytes import alphabet, byte_level
from swift_tables.characters import NONE, character_tables, split_tables, text_list, u32
from swift_tables.shapes import MARK, Shape, read_shape, refuse, token_id
from tokenizers import Tokenizer

MAGIC = b"ANETOK01"


@lru_cache(maxsize=8)  # several bundles of one model
def packed_tokenizer(json_text: str) -> bytes:
    """The bytes of tokenizer.bin for the text of a tokenizer.json.

    Raises UnsupportedModel with one sentence that names the field and its value, for anything that
    is not of the shapes in `swift_tables.shapes`, and for a file that is damaged.
    """
    try:
        file = json.loads(json_text)
        shape = read_shape(file)
        return _joined(_tokens(shape, file) | split_tables(shape) | character_tables(shape))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise UnsupportedModel(f"tokenizer.json is damaged: {error!r}"[:300]) from None


def _joined(sections: dict[str, bytes]) -> bytes:
    place, rows, body = len(MAGIC) + 4 + 12 * len(sections), [], []
    for name, data in sections.items():
        rows.append(struct.pack("<4sII", name.encode(), place, len(data)))
        body.append(data + bytes(-len(data) % 4))
        place += len(body[-1])
    return b"".join([MAGIC, struct.pack("<I", len(sections)), *rows, *body])


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
    for number, string in enumerate(strings):
        text = "" if string is None else string
        flags[number] |= 16 * (string is not None)
        if string in vocabulary:
            flags[number] |= 1 | 2 * (number in whole)
        flags[number] |= 4 * (number in hidden) + 8 * bool(
            shape.decoder == "fallback" and re.fullmatch("<0x[0-9A-Fa-f]{2}>", text)
        )
        shown.append(_shown(shape, text))
    real = byte_level if shape.model == "bytes" else str.encode
    return {
        "head": u32(head),
        **text_list("tok", [real(token or "") for token in strings]),
        "tokf": bytes(flags),
        **text_list("sho", shown if shape.decoder != "bytes" else []),
        "pref": shape.prefix.encode(),
        "merg": u32(vocabulary[text] for a, b in merges for text in (a, b, a + b)),
        **text_list("add", [one["content"].encode() for one in added]),
        "addi": u32(number for one in added for number in (one["id"], _sides(one))),
        "befo": u32(shape.before),
        "afte": u32(shape.after),
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
    letters = alphabet()
    found = set()
    for token, number in vocabulary.items():
        possible = token and (shape.model != "bytes" or all(c in letters for c in token))
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
