"""What the newer families cost, and how much of a layer the engine is known to take.

Sizes are those that `transformers` assumes where a `config.json` says nothing; there LFM2's layers
are all of attention, so every third one is here, as in the published models. Bytes are of a plan;
operations are those of narrow layers, one of each kind, since what the engine takes of an operation
hardly depends on its width.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ane_book.conversion.plan import Plan, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.conversion.write.decoder import lower_blocks, write_shard
from ane_book.models import find, read_config
from ane_book.models.base.decoder import block_weights
from mlprogram.ane.placement import place
import numpy as np

FAMILIES = (
    "smollm3", "olmo3", "ministral3", "exaone4", "glm4", "lfm2", "lfm2_moe", "qwen3_5_text",
    "qwen3_moe", "gemma4_text",
)  # fmt: skip
CONTEXT = 1024
NARROW = {
    "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2,
    "vocab_size": 512, "expert_size": 64, "num_experts": 8, "experts_per_token": 2,
}  # fmt: skip
KEPT = {
    "keys": "keys, values", "keys_local": "keys, values", "memory": "a memory", "gated": "columns",
    "projected": "columns",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A row of the page's table.

    plan: in int8, with `CONTEXT` slots. kept: what layers keep from call to call, and how many do.
    ops: operations of a layer of each kind, by whether the engine takes them: "yes", "no",
    "unknown".
    """

    name: str
    plan: Plan
    kept: dict[str, int]
    ops: Counter[str]


def family(name: str) -> Family:
    """The row of one of `FAMILIES`."""
    config = read_config(_fields(name))
    holders = find(config.architecture).signatures(config).holders()
    kept = Counter[str]()
    for own, layers in holders.items():
        kept.update({KEPT[own]: len(layers)} if own in KEPT else {})
    recipe = make_recipe(config, quant="int8", context=CONTEXT, shard_limit="1GB")
    planned = plan(config, recipe)
    return Family(name, planned, dict(kept), _taken(_narrow(config)))


def _fields(name: str) -> dict:
    from transformers import AutoConfig

    fields = AutoConfig.for_model(name).to_dict()
    if name.startswith("lfm2"):
        kinds = ("conv", "conv", "full_attention")
        fields["layer_types"] = [kinds[i % 3] for i in range(fields["num_hidden_layers"])]
    return fields


def _narrow(config: Any) -> Any:
    """The configuration with one layer of each kind, and little width."""
    kinds = find(config.architecture).kinds(config)
    own = sorted(kinds.index(kind) for kind in set(kinds))
    changes: dict[str, Any] = {
        n: size for n, size in NARROW.items() if n in type(config).model_fields
    }
    for name in ("layer_types", "sparse_layers"):
        if hasattr(config, name):
            changes[name] = tuple(getattr(config, name)[i] for i in own)
    return config.model_copy(update={"num_layers": len(own), **changes})


def _taken(config: Any) -> Counter[str]:
    """How many operations of the layers the engine takes."""
    recipe = make_recipe(config, kv="host", context=64, prefill=8)
    read, layers = _random(config), range(config.num_layers)
    weights = [block_weights(config, i, read) for i in layers]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "layers.mlpackage"
        write_shard(path, config, recipe, lower_blocks(config, recipe), layers, weights)
        return Counter(op["ane_takes_it"] for op in place(path).to_json()["ops"])


def _random(config: Any) -> Callable[[str], np.ndarray]:
    shapes, rng = find(config.architecture).tensors(config), np.random.default_rng(0)
    return lambda name: rng.standard_normal(shapes[name], np.float32) * np.float32(0.02)
