"""What a token adds to a text, in bytes, from the vocabulary's own spelling of it.

A token decoded by itself is another thing: a part of a character becomes U+FFFD, and the space
before a word is lost where a decoder takes it off the beginning of a text.
"""

from functools import cache
import json
import re

from tokenizers import Tokenizer


@cache
def alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte -> the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def byte_level(token: str) -> bytes:
    """The bytes that a byte-level decoder makes of a token; its own if it is none of theirs."""
    whole = all(character in alphabet() for character in token)
    return bytes(alphabet()[c] for c in token) if whole else token.encode()


def token_bytes(tokenizer: Tokenizer, token: int, first: bool) -> bytes:
    """The bytes of a token; none of a special one. first: where it begins a text."""
    alone, twice = (tokenizer.decode([token] * count) for count in (1, 2))
    spelling, decoders = tokenizer.id_to_token(token), list[str]()
    if tokenizer.decoder is not None:
        said = json.loads(tokenizer.decoder.__getstate__())
        decoders = [part["type"] for part in said.get("decoders", [said])]
    if not twice or spelling is None:
        return b""
    if "ByteLevel" in decoders:
        return byte_level(spelling)
    if "ByteFallback" in decoders and re.fullmatch("<0x[0-9A-Fa-f]{2}>", spelling):
        return bytes.fromhex(spelling[3:5])
    return (alone if first else twice[len(alone) :]).encode()
