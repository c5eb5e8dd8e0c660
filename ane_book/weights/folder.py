"""The tokenizer of a folder as `transformers` writes it, beside weights of whatever format."""

from dataclasses import replace
from pathlib import Path

from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel, first_fault
from ane_book.text.process import TextProcess
from ane_book.weights.source import TokenizerFiles, read_json, read_text
from pydantic import ValidationError
from tokenizers import Tokenizer

__all__ = ["read_tokenizer", "tokenizer_paths", "with_stops"]


def tokenizer_paths(folder: Path) -> list[Path]:
    """The files that a tokenizer is read from, of those that are there."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    paths = [folder / name for name in (*names, "generation_config.json")]
    return [path for path in paths if path.exists()]


def read_tokenizer(folder: Path, config: dict) -> TokenizerFiles:
    """The tokenizer; `config` has the ids that generation_config.json does not.

    Raises UnsupportedModel where there is no tokenizer.json, InvalidWeights for a damaged one.
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
    """The same with all ids that end an answer, each once.

    ChatML closes every turn by <|im_end|>, which base models converted for chat forget to declare;
    Phi's template does by <|end|>.
    """
    stops = [*files.eos_token_ids, tokenizer.token_to_id(files.eos_token or "")]
    template = files.chat_template or ""
    stops += [tokenizer.token_to_id(end) for end in ("<|im_end|>", "<|end|>") if end in template]
    return replace(files, eos_token_ids=tuple(dict.fromkeys(i for i in stops if i is not None)))


def _optional(path: Path) -> dict:
    return read_json(path) if path.exists() else {}


def _chat_template(folder: Path, settings: dict) -> str | None:
    """A file of its own, or a field: one template, or several of which one is the default."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        return next((e.get("template") for e in named if e.get("name") == "default"), None)
    return template


def _token(entry: str | dict | None) -> str | None:
    """tokenizer_config.json writes a special token as its text or as an object with its flags."""
    return entry.get("content") if isinstance(entry, dict) else entry


def _ids(entry: int | list | None) -> tuple[int, ...]:
    """generation_config.json writes one id or a list."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, list) else (entry,)
