"""A tokenizer from the metadata of a GGUF file.

A byte-level BPE ("gpt2") is stored as tokens in the order of their ids and merges in the order of
their rank. Before the merges a text is split into words, and the split decides which tokens a model
sees. The file gives it by a name only, `tokenizer.ggml.pre`, so a name that is not in the table
below is refused. SentencePiece ("llama") is stored as tokens with scores, and splits nothing.

References: Sennrich et al. 2016 (arXiv 1508.07909); Kudo and Richardson 2018 (arXiv 1808.06226);
llama.cpp's src/llama-vocab.cpp for the names and what each asks for; the regular expressions are
those in the tokenizer.json of Qwen2, Qwen3.5, Llama 3, GPT-4o, Mistral NeMo and HunYuan.
"""

import math

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.source import TokenizerFiles
from ane_book.weights.tokenizer import with_stops
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # llama.cpp's types of tokens
MARK = "\u2581"  # what stands for a space in SentencePiece's tokens

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?LETTERS+|NUMBER| ?[^\s\p{L}OTHERS\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PLAIN = _WORDS.replace("LETTERS", r"\p{L}").replace("OTHERS", "")
_MARKED = _WORDS.replace("LETTERS", r"[\p{L}\p{M}]").replace("OTHERS", r"\p{M}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+TAIL|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*TAIL"
    r"|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: The regular expressions that split a text, by the name of who uses them first.
SPLITS = {
    "llama3": _PLAIN.replace("NUMBER", r"\p{N}{1,3}"),  # OLMo 2, GLM-4, LFM2 and Phi-4 too
    "qwen2": _PLAIN.replace("NUMBER", r"\p{N}"),
    "qwen3.5": _MARKED.replace("NUMBER", r"\p{N}"),
    "o200k": _CASES.replace("TAIL", CONTRACTIONS + "?").replace("NUMBER", r"\p{N}{1,3}"),
    "tekken": _CASES.replace("TAIL", "").replace("NUMBER", r"\p{N}"),
    "digits1-3": r"\p{N}{1,3}",  # the three of DeepSeek and HunYuan
    "cjk": "[一-龥぀-ゟ゠-ヿ]+",
    "deepseek": r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
    r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def _split(*names: str) -> pre_tokenizers.PreTokenizer:
    """Split by each regular expression in turn, then map bytes to 256 printable characters."""
    words = [pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated") for name in names]
    return pre_tokenizers.Sequence([*words, _bytes(use_regex=False)])


def _bytes(use_regex: bool = True) -> pre_tokenizers.PreTokenizer:
    """Split into GPT-2's words (use_regex), then map bytes to 256 printable characters."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


#: Names by which a word that is itself a token stays whole, even if no merges lead to it, and a
#: text begins with the BOS token unless the file says otherwise.
WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "tekken")
#: `tokenizer.ggml.pre` -> the pre-tokenizer.
CUTS = {
    **dict.fromkeys(("gpt-2", "exaone4"), _bytes()),
    **dict.fromkeys(
        ("smollm", "refact", "exaone"),  # Granite 3 is one of "refact"
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes()]),
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _split("qwen2")),
    "qwen35": _split("qwen3.5"),
    **dict.fromkeys((*WHOLE, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _split("llama3")),
    "tekken": _split("tekken"),
    **dict.fromkeys(("gpt-4o", "llama4"), _split("o200k")),  # Phi-4-mini
    **dict.fromkeys(("hunyuan-dense", "deepseek-v3"), _split("digits1-3", "cjk", "deepseek")),
}
COMPOSED = ("qwen2", "qwen35")  # Unicode's NFC comes first
#: Of a Phi-3 that is SentencePiece: the special tokens that don't swallow the white space behind
#: them, as all others do.
UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def from_gguf(metadata: dict, vocab_size: int, place: str) -> TokenizerFiles:
    """Build the tokenizer that a GGUF file's metadata describes.

    vocab_size: rows of the embedding. place: the beginning of error messages. Raises
    UnsupportedModel for a kind that is not supported, InvalidWeights if the parts are inconsistent.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{place}: tokenizer of kind {kind!r}; supported: 'gpt2', byte-level BPE, and 'llama', "
            "SentencePiece"
        )
    cut = None if kind == "llama" else _cut(metadata, place)
    tokens, types = _listed(metadata, "tokens", place), _listed(metadata, "token_type", place)
    if not all(isinstance(token, str) for token in tokens):
        raise InvalidWeights(f"{place}: tokenizer.ggml.tokens are not texts")
    if len(set(tokens)) != len(tokens) or not 0 < len(tokens) <= vocab_size:
        raise InvalidWeights(
            f"{place}: the tokenizer has {len(tokens)} tokens ({len(set(tokens))} distinct) "
            f"for an embedding of {vocab_size} rows"
        )
    if cut is None:
        tokenizer = _sentencepiece(metadata, tokens, types, place)
    else:
        tokenizer = _byte_level_bpe(metadata, tokens, cut, place)
    strips = cut is None and metadata.get("general.architecture") == "phi3"
    added = []
    for token, own in zip(tokens, types, strict=False):
        if own in (UNKNOWN, CONTROL, USER_DEFINED):
            how = {"special": own != USER_DEFINED, "rstrip": strips and token not in UNSTRIPPED}
            added.append(AddedToken(token, normalized=False, **how))
    tokenizer.add_tokens(added)
    return _finish(tokenizer, tokens, metadata, cut, place)


def _cut(metadata: dict, place: str) -> str:
    """The name of the split into words; raises UnsupportedModel."""
    cut = metadata.get("tokenizer.ggml.pre")
    if cut in (None, "default"):
        # llama.cpp takes a split of its own then, which gives other tokens than in training.
        raise UnsupportedModel(
            f"{place}: tokenizer.ggml.pre is {'missing' if cut is None else cut}, so the file does "
            "not say how the model splits a text into words; take a newer file of the model, or "
            "name the split with the package gguf: gguf-new-metadata --pre-tokenizer NAME OLD NEW, "
            f"where NAME is one of {', '.join(CUTS)}"
        )
    if cut not in list(CUTS):  # which may be anything, a list too
        raise UnsupportedModel(
            f"{place}: tokenizer.ggml.pre {cut!r} is not supported; supported: {', '.join(CUTS)}"
        )
    return cut


def _listed(metadata: dict, name: str, place: str) -> list:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list):
        raise InvalidWeights(f"{place}: the metadata has no list tokenizer.ggml.{name}")
    return found


def _byte_level_bpe(metadata: dict, tokens: list[str], cut: str, place: str) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = _listed(metadata, "merges", place)
    try:
        pairs = []
        for merge in merges:
            first, _, second = merge.partition(" ")
            pairs.append((first, second))
        bpe = models.BPE(vocabulary, pairs, ignore_merges=cut in WHOLE)
    except Exception as error:  # `tokenizers` raises this class itself
        raise InvalidWeights(f"{place}: the tokens or merges are damaged: {error}") from None
    tokenizer = Tokenizer(bpe)
    if cut in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = CUTS[cut]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: dict, tokens: list[str], types: list[int], place: str) -> Tokenizer:
    """Join characters, the best scored pair first; one without a token becomes those of its
    bytes."""
    scores = _listed(metadata, "scores", place)
    numbers = all(isinstance(s, int | float) and math.isfinite(s) for s in scores)
    if len(scores) < len(tokens) or not numbers:
        raise InvalidWeights(f"{place}: tokenizer.ggml.scores has no number for each token")
    # No text becomes another token by merges: it would be one that a stranger can write.
    rows = zip(tokens, scores, types, strict=False)
    scored = {token: score for token, score, own in rows if own == NORMAL}
    pairs = [
        (-score, -i, (token[:i], token[i:]))  # of equal ones the longest beginning, as transformers
        for token, score in scored.items()
        for i in range(1, len(token))
        if token[:i] in scored and token[i:] in scored
    ]
    unknown = _token_id(metadata, tokens, "unknown", place, 0)
    bpe = models.BPE(
        {token: i for i, token in enumerate(tokens)},
        [pair for *_, pair in sorted(pairs)],
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    begin, strip = [normalizers.Prepend(MARK)], [decoders.Strip(" ", 1, 0)]
    if not metadata.get("tokenizer.ggml.add_space_prefix", True):
        begin, strip = [], []
    tokenizer.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", MARK)])
    back = (decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse())
    tokenizer.decoder = decoders.Sequence([*back, *strip])
    return tokenizer


def _token_id(
    metadata: dict, tokens: list[str], name: str, place: str, default: int | None = None
) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    if value is None or (isinstance(value, int) and 0 <= value < len(tokens)):
        return value
    raise InvalidWeights(f"{place}: tokenizer.ggml.{name}_token_id {value!r} is not a token")


def _finish(
    tokenizer: Tokenizer, tokens: list[str], metadata: dict, cut: str | None, place: str
) -> TokenizerFiles:
    """Add the special tokens' ids, and have texts start with a BOS token if the model needs it.

    What the file does not say is as llama.cpp has it: of SentencePiece (no cut), BOS is 1, EOS 2.
    """
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise InvalidWeights(f"{place}: tokenizer.chat_template is not text: {template!r}")
    known = {} if cut else {"bos": 1, "eos": 2}
    names = ("bos", "eos", "eot")
    bos, eos, eot = (_token_id(metadata, tokens, n, place, known.get(n)) for n in names)
    begins = metadata.get("tokenizer.ggml.add_bos_token", cut is None or cut in WHOLE)
    if begins and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    files = TokenizerFiles(
        json=tokenizer.to_str(),
        chat_template=template,
        eos_token_ids=tuple(i for i in (eos, eot) if i is not None),
        bos_token_id=bos,
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
    )
    return with_stops(files, tokenizer)
