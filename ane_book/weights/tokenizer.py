"""The tokenizer in a folder of Hugging Face's, and the ids that end an answer."""

from dataclasses import replace
from pathlib import Path

from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel, first_fault
from ane_book.text.process import TextProcess
from ane_book.weights.source import TokenizerFiles, read_json, read_text
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


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
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), end]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False)])
    return TokenizerFiles(tokenizer.to_str(), eos_token_ids=(256,), eos_token=end)
