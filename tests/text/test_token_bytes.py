"""The bytes of tokens, joined, are those of the text that the tokens make."""

from ane_book.text.token_bytes import alphabet, token_bytes
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXTS = [
    "hello world", " hello", "  user  is it ", "é日🎉語", "Käse 🎉 it", "<b>hello</b>", "\n\nis",
    "<0x41>",
]  # fmt: skip
ADDED = [AddedToken("<b>", normalized=False), AddedToken("\n\n", normalized=False)]


def made(model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer


def byte_level() -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate([*alphabet(), "Ġh"])}
    tokenizer = made(models.BPE(vocabulary, [("Ġ", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As Llama 2's: bytes of characters without a token, and a space before each text."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrdusit<>0x41", "▁h"]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = made(models.BPE(vocabulary, [("▁", "h")], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    space = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), space]
    )
    return tokenizer


def word_pieces() -> Tokenizer:
    tokens = ["[UNK]", "hello", "world", "us", "##er", "is", "it", "é", "##日", "##🎉", "##語"]
    tokenizer = made(models.WordPiece({token: i for i, token in enumerate(tokens)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentence_piece, word_pieces])
def test_joined_they_are_the_text(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text).ids
    said = [token_bytes(tokenizer, token, first=i == 0) for i, token in enumerate(ids)]
    assert b"".join(said) == tokenizer.decode(ids).encode()
    assert all(said) or make is sentence_piece  # whose first token may be the space


@pytest.mark.parametrize("make", [byte_level, sentence_piece, word_pieces])
def test_special_tokens_and_ids_of_none_have_no_bytes(make):
    tokenizer = make()
    for token in (tokenizer.token_to_id("<s>"), tokenizer.get_vocab_size() + 7):
        assert token_bytes(tokenizer, token, first=False) == b""
