"""Read the settings of sentence-transformers beside a model: from truncation to the last step.

    modules.json                        the steps in order: Transformer, Pooling, perhaps Dense and
                                        Normalize
    sentence_bert_config.json           max_seq_length, the tokens after which a text is cut
    config_sentence_transformers.json   prompts, what vectors are cut to, how they are compared
    1_Pooling/config.json               how the vectors of a text's tokens become one
    2_Dense/config.json                 a matrix and an activation for that one, with
                                        model.safetensors

Vectors have length 1 here whether Normalize is among the steps or not, so a model whose vectors are
compared by more than their direction is refused unless it is.

Reference: https://sbert.net, the package `sentence_transformers.models`.
"""

from pathlib import Path
from typing import Any

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.source import read_json

MODULES, CUT = "modules.json", "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}  # theirs -> ours
MODES = {"cls": "cls", "mean": "mean", "lasttoken": "last"}  # the same, in one field
ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
BY_DIRECTION = (None, "cosine")  # similarities that a vector's length does not change


def sentence_files(folder: Path) -> list[Path]:
    """The files in `folder` that `sentence_settings` reads, if they exist, and Dense's weights."""
    paths = [folder / MODULES, folder / CUT, folder / SETTINGS]
    if paths[0].exists():
        modules = read_json(paths[0], list)
        paths += [_pooling_file(folder, modules)]
        for dense in _folders(folder, modules, "Dense"):
            paths += [dense / "config.json", dense / "model.safetensors"]
    return [path for path in paths if path.exists()]


def has_pooling(folder: Path) -> bool:
    """Whether a model in `folder` makes vectors of texts, by its modules."""
    if not (folder / MODULES).exists():
        return False
    return "Pooling" in map(_kind, read_json(folder / MODULES, list))


def dense_files(folder: Path) -> dict[str, Path]:
    """The weights of each Dense step, by the step's folder."""
    if not (folder / MODULES).exists():
        return {}
    folders = _folders(folder, read_json(folder / MODULES, list), "Dense")
    return {dense.name: dense / "model.safetensors" for dense in folders}


def sentence_settings(folder: Path) -> dict:
    """Read `pooling` ("mean", "cls" or "last"), `max_seq_length`, `prompts`, `default_prompt`,
    `dimensions` and the `dense` layers, those of them that the folder has.

    Raises UnsupportedModel for any other step, InvalidWeights for a damaged file.
    """
    found: dict[str, Any] = {}
    normal = True
    if (folder / MODULES).exists():
        modules = read_json(folder / MODULES, list)
        _refuse(folder / MODULES, modules)
        found["pooling"] = _pooling(_pooling_file(folder, modules))
        found["dense"] = [_dense(dense) for dense in _folders(folder, modules, "Dense")] or None
        normal = "Normalize" in map(_kind, modules)
    if (folder / CUT).exists():
        cut = read_json(folder / CUT)
        if cut.get("do_lower_case"):
            raise UnsupportedModel(f"{folder / CUT}: do_lower_case = true is not supported")
        found["max_seq_length"] = cut.get("max_seq_length")
    if (folder / SETTINGS).exists():
        found |= _whole(folder / SETTINGS, normal)
    _check_prompts(folder, found)
    return {name: value for name, value in found.items() if value is not None}


def _whole(place: Path, normal: bool) -> dict:
    """The settings of the whole model. normal: its vectors have length 1."""
    fields = read_json(place)
    similarity = fields.get("similarity_fn_name")
    if similarity not in BY_DIRECTION and not normal:
        raise UnsupportedModel(
            f"{place}: similarity_fn_name = {similarity!r} without a Normalize step is not "
            "supported: vectors have length 1 here"
        )
    prompts = fields.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise InvalidWeights(f"{place}: prompts is not an object of texts by name")
    own = {"default_prompt": fields.get("default_prompt_name")}
    return own | {"prompts": prompts or None, "dimensions": fields.get("truncate_dim")}


def _check_prompts(folder: Path, found: dict) -> None:
    """Raise UnsupportedModel where a prompt's tokens are left out of the mean."""
    if not found.get("prompts") or not (folder / MODULES).exists():
        return
    place = _pooling_file(folder, read_json(folder / MODULES, list))
    if any(found["prompts"].values()) and read_json(place).get("include_prompt") is False:
        raise UnsupportedModel(f"{place}: include_prompt = false is not supported with prompts")


def _dense(folder: Path) -> dict:
    """The fields of a `DenseLayer`."""
    fields, weights = read_json(folder / "config.json"), folder / "model.safetensors"
    kind = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]
    if kind not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{folder / 'config.json'}: activation_function {kind} is not supported; supported: "
            f"{', '.join(ACTIVATIONS)}"
        )
    if not weights.exists():
        raise InvalidWeights(f"{weights} is missing, the weights of a Dense step; get it as well")
    try:
        sizes = {"inputs": fields["in_features"], "outputs": fields["out_features"]}
    except KeyError as error:
        place = folder / "config.json"
        raise InvalidWeights(f"{place}: the field {error} is missing") from None
    bias = bool(fields.get("bias", True))
    return {"folder": folder.name, "bias": bias, "activation": ACTIVATIONS[kind], **sizes}


def _kind(module) -> str:
    """The last word of a module's type: "sentence_transformers.models.Pooling"."""
    return str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""


def _refuse(place: Path, modules: list) -> None:
    kinds = [_kind(module) for module in modules]
    after = [kind for kind in kinds[2:] if kind != "Dense"]
    if kinds[:2] != ["Transformer", "Pooling"] or after not in ([], [kinds[-1]]) or (
        after and after != ["Normalize"]
    ):
        raise UnsupportedModel(
            f"{place}: the modules {', '.join(kinds) or 'none'} are not supported; supported: "
            "Transformer, Pooling and, after them, Dense and Normalize"
        )


def _folders(folder: Path, modules: list, kind: str) -> list[Path]:
    """The folders of the steps of a kind, in order."""
    found = []
    for path in (str(module.get("path")) for module in modules if _kind(module) == kind):
        if path in (".", "..") or not path.replace("_", "").replace(".", "").isalnum():
            raise InvalidWeights(f"{folder / MODULES}: {path!r} is not a folder beside it")
        found.append(folder / path)
    return found


def _pooling_file(folder: Path, modules: list) -> Path:
    return next(iter(_folders(folder, modules, "Pooling")), folder / "1_Pooling") / "config.json"


def _pooling(place: Path) -> str:
    fields = read_json(place)
    if (mode := fields.get("pooling_mode")) in MODES:
        return MODES[mode]
    if mode is not None:
        raise UnsupportedModel(
            f"{place}: pooling by {mode} is not supported; supported: {' or '.join(MODES)}"
        )
    wanted = [name.removeprefix("pooling_mode_") for name, on in fields.items()
              if name.startswith("pooling_mode_") and on is True]  # fmt: skip
    if len(wanted) != 1 or wanted[0] not in POOLINGS:
        raise UnsupportedModel(
            f"{place}: pooling by {' and '.join(wanted) or 'nothing'} is not supported; supported: "
            f"{' or '.join(POOLINGS)}"
        )
    return POOLINGS[wanted[0]]
