"""Tokens with log probabilities, joined, are the answer, whatever bytes each has."""

import json
from pathlib import Path

from _command import chatty_copy
from _scripted import scripted
from _serving import serving
from ane_book.bundle import Bundle
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

ANSWER = "hi hi é日🎉"
ASK = {"model": "talker", "temperature": 0, "max_tokens": 40}
CHAT = ASK | {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}


def sentence_piece(folder: Path) -> None:
    """As Llama 2's: bytes of characters without a token, and a space before each text."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "h")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    space = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), space]
    )
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=["byte level", "SentencePiece"])
def address(request, tiny_bundle, tmp_path_factory):
    """A server of a model that says ANSWER."""
    wide = (("head_dim", 64), ("vocab_size", 263))
    made = tiny_bundle("llama", wide, head_rows=100, context=128, prefill=16)[1]
    folder = chatty_copy(made.path, tmp_path_factory.mktemp("served"))
    if request.param == "SentencePiece":
        sentence_piece(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["tokenizer.json"] = (folder / "tokenizer.json").stat().st_size
    end = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<|end|>")
    manifest["tokenizer"]["eos_token_ids"] = [end]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with serving(scripted(Bundle.open(folder), "talker", lambda _: ANSWER)) as address:
        yield address


def said(tokens) -> str:
    return b"".join(map(bytes, tokens)).decode()


def read(token: str) -> bytes:
    """A token of a completion, as OpenAI writes those that are no whole characters."""
    _, part, digits = token.partition("bytes:")
    return bytes.fromhex(digits.replace(r"\x", "")) if part else token.encode()


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_chat(client, stream):
    found = client.chat.completions.create(**CHAT, top_logprobs=2, stream=stream)
    choices = [chunk.choices[0] for chunk in found if chunk.choices] if stream else found.choices
    tokens = [each for one in choices if one.logprobs for each in one.logprobs.content]
    assert said([each.bytes for each in tokens]) == ANSWER
    assert said([each.top_logprobs[0].bytes for each in tokens]) == ANSWER
    whole = [each for each in tokens if "\ufffd" not in each.token]
    assert all(each.token.encode() == bytes(each.bytes) for each in whole)
    assert "".join(each.token for each in whole).strip() == "hi hi"


def test_of_a_completion(client):
    found = client.completions.create(**ASK, prompt="Hi", logprobs=2).choices[0]
    tokens = found.logprobs.tokens
    assert said([read(token) for token in tokens]) == found.text == ANSWER
    assert r"bytes:\xf0" in tokens
    assert all(len(top) == 2 for top in found.logprobs.top_logprobs)
