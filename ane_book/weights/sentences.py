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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.source import read_json

MODULES, CUT = "modules.json", "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last"}  # theirs -> ours
ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
BY_DIRECTION = (None, "cosine")  # similarities that a vector's length does not change


@dataclass(frozen=True)
class Sentences:
    """What sentence-transformers' files say of a model of vectors.

    settings: `pooling` ("mean", "cls" or "last"), `max_seq_length`, `prompts`, `default_prompt`,
    `dimensions` and the `dense` layers, those of them that the folder has. files: what was read,
    and Dense's weights. dense: the weights of each Dense step, by the step's folder.
    """

    settings: dict[str, Any]
    files: list[Path]
    dense: dict[str, Path]


def read_steps(folder: Path) -> list[tuple[str, Path]]:
    """The steps of a model of vectors in order, each a kind, such as "Pooling", and its folder;
    none without modules.json."""
    steps, place = [], folder / MODULES
    for module in read_json(place, list) if place.exists() else ():
        fields = module if isinstance(module, dict) else {}
        kind, path = str(fields.get("type")).rpartition(".")[2], str(fields.get("path"))
        plain = path.replace("_", "").replace(".", "").isalnum()
        if kind in ("Pooling", "Dense") and (path in (".", "..") or not plain):
            raise InvalidWeights(f"{place}: {path!r} is not a folder beside it")
        steps.append((kind, folder / path))
    return steps


def sentence_settings(folder: Path) -> Sentences:
    """Read the settings. Raises UnsupportedModel for any other step, InvalidWeights for a damaged
    file."""
    modules, cut, whole = (folder / name for name in (MODULES, CUT, SETTINGS))
    files = [place for place in (modules, cut, whole) if place.exists()]
    settings: dict[str, Any] = {}
    dense, pooling, normal = {}, {}, True
    if modules in files:
        steps = read_steps(folder)
        kinds = [kind for kind, _ in steps]
        known = ["Transformer", "Pooling", *["Dense"] * kinds.count("Dense")]
        if kinds not in (known, [*known, "Normalize"]):
            raise UnsupportedModel(
                f"{modules}: the modules {', '.join(kinds) or 'none'} are not supported; "
                "supported: Transformer, Pooling and, after them, Dense and Normalize"
            )
        normal = steps[-1][0] == "Normalize"
        place = steps[1][1] / "config.json"
        pooling = read_json(place)
        dense = {path.name: path / "model.safetensors" for kind, path in steps if kind == "Dense"}
        layers = [_dense(path) for kind, path in steps if kind == "Dense"]
        settings |= {"pooling": _pooling(pooling, place), "dense": layers or None}
        files += [place, *(f for w in dense.values() for f in (w.parent / "config.json", w))]
    if cut in files:
        fields = read_json(cut)
        if fields.get("do_lower_case"):
            raise UnsupportedModel(f"{cut}: do_lower_case = true is not supported")
        settings["max_seq_length"] = fields.get("max_seq_length")
    if whole in files:
        settings |= _whole(whole, normal, pooling.get("include_prompt") is not False)
    return Sentences({n: value for n, value in settings.items() if value is not None}, files, dense)


def _pooling(fields: dict, place: Path) -> str:
    """How token vectors become one: named in one field, or in older files by switches."""
    switches = [name for name, on in fields.items() if "pooling_mode_" in name and on is True]
    words = [n.removeprefix("pooling_mode_").removesuffix("_tokens") for n in switches]
    modes = [word.removesuffix("_token") for word in words]
    if (mode := fields.get("pooling_mode")) is not None:
        modes = [str(mode)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UnsupportedModel(
            f"{place}: pooling by {' and '.join(modes) or 'nothing'} is not supported; supported: "
            f"{' or '.join(POOLINGS)}"
        )
    return POOLINGS[modes[0]]


def _dense(step: Path) -> dict:
    """The fields of a `DenseLayer`."""
    place, weights = step / "config.json", step / "model.safetensors"
    fields = read_json(place)
    kind = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]
    if kind not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{place}: activation_function {kind} is not supported; supported: "
            f"{', '.join(ACTIVATIONS)}"
        )
    if not weights.exists():
        raise InvalidWeights(f"{weights} is missing, the weights of a Dense step; get it as well")
    if missing := [name for name in ("in_features", "out_features") if name not in fields]:
        raise InvalidWeights(f"{place}: the field {missing[0]!r} is missing")
    return {
        "folder": step.name, "bias": bool(fields.get("bias", True)),
        "activation": ACTIVATIONS[kind], "inputs": fields["in_features"],
        "outputs": fields["out_features"],
    }  # fmt: skip


def _whole(place: Path, normal: bool, prompted: bool) -> dict:
    """The settings of the whole model. normal: its vectors have length 1. prompted: a prompt's
    tokens are pooled like the text's."""
    fields = read_json(place)
    similarity, prompts = fields.get("similarity_fn_name"), fields.get("prompts") or {}
    if similarity not in BY_DIRECTION and not normal:
        raise UnsupportedModel(
            f"{place}: similarity_fn_name = {similarity!r} without a Normalize step is not "
            "supported: vectors have length 1 here"
        )
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise InvalidWeights(f"{place}: prompts is not an object of texts by name")
    if any(prompts.values()) and not prompted:
        raise UnsupportedModel(f"{place}: prompts with include_prompt = false are not supported")
    return {
        "default_prompt": fields.get("default_prompt_name"), "prompts": prompts or None,
        "dimensions": fields.get("truncate_dim"),
    }  # fmt: skip
