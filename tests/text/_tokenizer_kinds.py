"""A text, a conversation, a template, and a sound tokenizer of each kind."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXT = "What is <b>the</b> capital of   France? 123 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! café 🙂"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
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
