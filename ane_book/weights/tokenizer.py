"""A model's tokenizer, and the ids that end an answer: of a Hugging Face folder, whatever format
its weights have, or made from the metadata of a GGUF file.

GGUF stores what a byte-level BPE learned: tokens in the order of their ids, merges in the order of
their rank. How text is split into words before the merges (pre-tokenization) it says by a name
only, `tokenizer.ggml.pre`. The split decides which tokens a model sees, so a name that is not in
the table below is refused.

References: Sennrich et al. 2016 (arXiv 1508.07909); llama.cpp's src/llama-vocab.cpp for the names;
the regular expressions are those in the tokenizer.json of Qwen2, Llama 3, GPT-4o and HunYuan.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel, first_fault
from ane_book.text.process import TextProcess
from ane_book.weights.source import TokenizerFiles, read_json, read_text
from pydantic import ValidationError
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


def tokenizer_paths(folder: Path) -> list[Path]:
    """The files in `folder` that `read_tokenizer` reads, if they exist."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    paths = [folder / name for name in (*names, "generation_config.json")]
    return [path for path in paths if path.exists()]


def read_tokenizer(folder: Path, config: dict) -> TokenizerFiles:
    """Read the tokenizer. Ids that generation_config.json lacks are taken from `config`.

    Raises UnsupportedModel if there is no tokenizer.json, InvalidWeights if it is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UnsupportedModel(
            f"{path} is missing and no other form of tokenizer is read, but `transformers` "
            "can write it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    text, tokenizer = read_text(path), TextProcess()
    try:
        tokenizer.load(path)
    except InvalidInput as error:
        raise InvalidWeights(f"{path}: {error}") from None
    settings = _optional(folder / "tokenizer_config.json")
    generation = config | _optional(folder / "generation_config.json")
    try:
        files = TokenizerFiles(
            json=text,
            chat_template=_chat_template(folder, settings),
            eos_token_ids=_ids(generation.get("eos_token_id")),
            bos_token_id=next(iter(_ids(generation.get("bos_token_id"))), None),
            bos_token=_token(settings.get("bos_token")),
            eos_token=_token(settings.get("eos_token")),
        )
    except ValidationError as error:
        raise InvalidWeights(f"{folder}: tokenizer: {first_fault(error)}") from None
    return with_stops(files, tokenizer)


def with_stops(files: TokenizerFiles, tokenizer: Tokenizer | TextProcess) -> TokenizerFiles:
    """Add to `eos_token_ids` the id of `eos_token`, and of <|im_end|> and <|end|> if the chat
    template uses them.

    ChatML ends every turn with <|im_end|>, and Phi's template with <|end|>, but the files of some
    models do not declare them as ends.
    """
    stops = [*files.eos_token_ids, tokenizer.token_to_id(files.eos_token or "")]
    template = files.chat_template or ""
    stops += [tokenizer.token_to_id(end) for end in ("<|im_end|>", "<|end|>") if end in template]
    return replace(files, eos_token_ids=tuple(dict.fromkeys(i for i in stops if i is not None)))


def _optional(path: Path) -> dict:
    return read_json(path) if path.exists() else {}


def _chat_template(folder: Path, settings: dict) -> str | None:
    """The chat template: a file, or a field with one template or several, one called "default"."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        return next((e.get("template") for e in named if e.get("name") == "default"), None)
    return template


def _token(entry: str | dict | None) -> str | None:
    """The text of a special token, which tokenizer_config.json has as text or as an object."""
    return entry.get("content") if isinstance(entry, dict) else entry


def _ids(entry: int | list | None) -> tuple[int, ...]:
    """The ids of an entry of generation_config.json, which is one id or a list."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, list) else (entry,)


# --- of a GGUF's metadata

CONTROL, USER_DEFINED = 3, 4  # llama.cpp's token types that are matched in the text as a whole

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+TAIL|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*TAIL"
    r"|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: The regular expressions that split a text, by the name of who uses them first.
SPLITS = {
    "llama3": _WORDS.replace("NUMBER", r"\p{N}{1,3}"),  # OLMo 2 and Phi-4 too
    "qwen2": _WORDS.replace("NUMBER", r"\p{N}"),
    "o200k": CASES.replace("TAIL", CONTRACTIONS + "?").replace("NUMBER", r"\p{N}{1,3}"),
    "digits1-3": r"\p{N}{1,3}",  # the three of DeepSeek and HunYuan
    "cjk": "[一-龥぀-ゟ゠-ヿ]+",
    "deepseek": r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
    r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def _split(patterns: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Split by each regular expression in turn, then map bytes to 256 printable characters."""
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*words, _bytes(use_regex=False)])


def _bytes(use_regex: bool = True) -> pre_tokenizers.PreTokenizer:
    """Split into GPT-2's words (use_regex), then map bytes to 256 printable characters."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


#: `tokenizer.ggml.pre` -> the pre-tokenizer.
CUTS = {
    "gpt-2": _bytes(),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes()]),
    "qwen2": _split([SPLITS["qwen2"]]),
    "llama-bpe": _split([SPLITS["llama3"]]),
    "gpt-4o": _split([SPLITS["o200k"]]),  # Phi-4-mini
    "hunyuan-dense": _split([SPLITS[name] for name in ("digits1-3", "cjk", "deepseek")]),
}


def from_gguf(metadata: dict, vocab_size: int, place: str) -> TokenizerFiles:
    """Build the tokenizer that a GGUF file's metadata describes.

    vocab_size: rows of the embedding. place: the beginning of error messages. Raises
    UnsupportedModel for a kind that is not supported, InvalidWeights if the parts are inconsistent.
    """
    kind, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedModel(
            f"{place}: tokenizer of kind {kind!r}; supported: 'gpt2', byte-level BPE"
        )
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
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "merges", "token_type")]
    for key in keys:
        if not isinstance(metadata.get(key), list):
            raise InvalidWeights(f"{place}: the metadata has no list {key}")
    tokens, merges, types = (metadata[key] for key in keys)
    if len(set(tokens)) != len(tokens) or not 0 < len(tokens) <= vocab_size:
        raise InvalidWeights(
            f"{place}: the tokenizer has {len(tokens)} tokens ({len(set(tokens))} distinct) "
            f"for an embedding of {vocab_size} rows"
        )
    tokenizer = _byte_level_bpe(tokens, merges, cut, place)
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (CONTROL, USER_DEFINED):
            special = token_type == CONTROL
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    return _finish(tokenizer, tokens, metadata, place)


def _byte_level_bpe(tokens: list[str], merges: list[str], cut: str, place: str) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        pairs = []
        for merge in merges:
            first, _, second = merge.partition(" ")
            pairs.append((first, second))
        # In Llama 3 a word that is itself a token stays whole, even if no merges lead to it.
        bpe = models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe")
    except Exception as error:  # `tokenizers` raises this class itself
        raise InvalidWeights(f"{place}: the tokens or merges are damaged: {error}") from None
    tokenizer = Tokenizer(bpe)
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = CUTS[cut]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _finish(tokenizer: Tokenizer, tokens: list[str], metadata: dict, place: str) -> TokenizerFiles:
    """Add the special tokens' ids, and have texts start with a BOS token if the model needs it."""

    def token_id(key: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is None or (isinstance(value, int) and 0 <= value < len(tokens)):
            return value
        raise InvalidWeights(f"{place}: tokenizer.ggml.{key}_token_id {value!r} is not a token")

    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise InvalidWeights(f"{place}: tokenizer.chat_template is not text: {template!r}")
    bos, eos, eot = token_id("bos"), token_id("eos"), token_id("eot")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
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


def byte_level(vocab_size: int) -> TokenizerFiles:
    """A tokenizer without merges: one token per byte, and <|endoftext|> as id 256.

    For models with random weights, which have no tokenizer of their own. Raises UnsupportedModel
    if the vocabulary has fewer than 257 entries.
    """
    if vocab_size < 257:
        raise UnsupportedModel(
            f"a vocabulary of {vocab_size} has no room for 256 bytes and an end token; give a "
            "vocab_size of 257 or more"
        )
    end = "<|endoftext|>"
    tokenizer = _byte_level_bpe(
        [*sorted(pre_tokenizers.ByteLevel.alphabet()), end], [], "gpt-2", "byte-level tokenizer"
    )
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False)])
    return TokenizerFiles(tokenizer.to_str(), eos_token_ids=(256,), eos_token=end)
