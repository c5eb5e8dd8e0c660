"""Read the settings of sentence-transformers beside a model: truncation and pooling.

    modules.json                the steps in order: Transformer, Pooling, perhaps Normalize
    sentence_bert_config.json   max_seq_length, the tokens after which a text is cut
    1_Pooling/config.json       how the vectors of a text's tokens become one

Reference: https://sbert.net, the package `sentence_transformers.models`.
"""

from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.source import read_json

__all__ = ["sentence_files", "sentence_settings"]

MODULES, CUT = "modules.json", "sentence_bert_config.json"
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean"}  # their names -> ours


def sentence_files(folder: Path) -> list[Path]:
    """The files in `folder` that `sentence_settings` reads, if they exist."""
    paths = [folder / MODULES, folder / CUT]
    if paths[0].exists():
        paths += [_pooling_file(folder, read_json(paths[0], list))]
    return [path for path in paths if path.exists()]


def sentence_settings(folder: Path) -> dict:
    """Read `pooling` ("mean" or "cls") and `max_seq_length`, if the folder has them.

    Raises UnsupportedModel for any other step, InvalidWeights for a damaged file.
    """
    found = {}
    if (folder / MODULES).exists():
        modules = read_json(folder / MODULES, list)
        _refuse(folder / MODULES, modules)
        found["pooling"] = _pooling(_pooling_file(folder, modules))
    if (folder / CUT).exists():
        cut = read_json(folder / CUT)
        if cut.get("do_lower_case"):
            raise UnsupportedModel(f"{folder / CUT}: do_lower_case = true is not supported")
        found["max_seq_length"] = cut.get("max_seq_length")
    return {name: value for name, value in found.items() if value is not None}


def _kind(module) -> str:
    """The last word of a module's type: "sentence_transformers.models.Pooling"."""
    return str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""


def _refuse(place: Path, modules: list) -> None:
    kinds = [_kind(module) for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedModel(
            f"{place}: the modules {', '.join(kinds) or 'none'} are not supported; supported: "
            "Transformer, Pooling and, after them, Normalize"
        )


def _pooling_file(folder: Path, modules: list) -> Path:
    path = next((str(m.get("path")) for m in modules if _kind(m) == "Pooling"), "1_Pooling")
    if path in (".", "..") or not path.replace("_", "").replace(".", "").isalnum():
        raise InvalidWeights(f"{folder / MODULES}: {path!r} is not a folder beside it")
    return folder / path / "config.json"


def _pooling(place: Path) -> str:
    fields = read_json(place)
    wanted = [name.removeprefix("pooling_mode_") for name, on in fields.items()
              if name.startswith("pooling_mode_") and on is True]  # fmt: skip
    if len(wanted) != 1 or wanted[0] not in POOLINGS:
        raise UnsupportedModel(
            f"{place}: pooling by {' and '.join(wanted) or 'nothing'} is not supported; supported: "
            f"{' or '.join(POOLINGS)}"
        )
    return POOLINGS[wanted[0]]
