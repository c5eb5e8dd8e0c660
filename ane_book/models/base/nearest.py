"""Which family is nearest to a model of none of them, by the fields of its `config.json`.

Every dense decoder reads the fields as if they were its own, and what it asks for is noted. So the
comparison knows of no family, and a new one takes part as soon as it is listed. What differs only
in the code of a model, such as where a norm stands, `config.json` does not say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import Architecture
from ane_book.models.base.dense import Dense, plain_rope

#: Fields that say nothing of a model's layers, and endings of such.
APART = (
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "initializer_range",
    "label2id", "model_type", "output_router_logits", "pretraining_tp", "quantization_config",
    "return_dict", "rope_scaling", "rope_theta", "router_aux_loss_coef", "torch_dtype",
    "transformers_version", "use_cache",
)  # fmt: skip
ENDINGS = ("dropout", "_pdrop", "_token_id")
SIZES = frozenset({"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"})
SHOWN = 8  # fields of each sort


class _Fields(dict):
    """The fields of a `config.json`; notes which are asked for, and 1 stands in for a missing one.

    What `fields | changes` gives notes in the same place.
    """

    def __init__(self, fields: dict, noted: "_Fields | None" = None):
        super().__init__(fields)
        self.asked: set[str] = noted.asked if noted is not None else set()
        self.missing: set[str] = noted.missing if noted is not None else set()

    def __getitem__(self, name: str):
        self.asked.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> int:
        self.missing.add(name)
        return 1

    def get(self, name: str, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __or__(self, changes: dict) -> "_Fields":
        return _Fields({**self, **changes}, self)


@dataclass(frozen=True)
class _Difference:
    """How a model's fields differ from what a family reads."""

    family: str
    unread: dict = field(default_factory=dict)  # fields that are set and that it does not read
    missing: tuple[str, ...] = ()  # fields that it needs
    refused: dict = field(default_factory=dict)  # fields with a value that it refuses

    @property
    def distance(self) -> tuple[int, bool, str]:
        """The number of differences; among equals Llama is first, of which others are variants."""
        count = len(self.unread) + len(self.missing) + len(self.refused)
        return count, self.family != "llama", self.family

    def __str__(self) -> str:
        parts = []
        if self.unread:
            parts.append(f"it does not read {_shown(self.unread)}")
        if self.refused:
            parts.append(f"it refuses {_shown(self.refused)}")
        if self.missing:
            parts.append(f"it needs {', '.join(self.missing)}")
        return "; ".join(parts) or "no field differs"


def describe_nearest(fields: dict, architectures: Iterable[Architecture]) -> str:
    """One sentence on the family that is nearest to a `config.json`, and how the two differ."""
    inner = fields.get("text_config")
    if isinstance(inner, dict):
        known = any(inner.get("model_type") == one.model_type for one in architectures)
        what = f"its text_config is of model_type {inner.get('model_type')!r}, which "
        if known:
            return (
                f"{what}is supported: save the language model alone, with a config.json of its own"
            )
        return f"{what}is none either; {describe_nearest(inner, architectures)}"
    dense = [one for one in architectures if isinstance(one, Dense) and not one.variant]
    nearest = min((_compare(fields, one) for one in dense), key=lambda found: found.distance)
    if lacking := sorted(SIZES - fields.keys()):
        return f"no family is near: config.json has no {', '.join(lacking)}"
    return (
        f"nearest by config.json is {nearest.family}: {nearest} (what differs in code alone no "
        "field says); book/families.md shows how to add one"
    )


def _compare(fields: dict, family: Dense) -> _Difference:
    read, refused = _Fields(_one_rope(fields)), {}
    for name, value in family.fixed.items():
        if read.get(name) is not None and read[name] != value:
            refused[name] = read[name]
    try:
        family.read(read)
    except UnsupportedModel as error:
        name = str(error).removeprefix("config.json: ").split()[0]
        refused[name] = read.get(name, "of another type")
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        pass  # a field is no use to anybody; what was asked for until then counts
    unread = {
        name: value
        for name, value in read.items()
        if value and name not in read.asked and name not in APART and not name.endswith(ENDINGS)
    }
    return _Difference(family.model_type, unread, tuple(sorted(read.missing)), refused)


def _one_rope(fields: dict) -> dict:
    """The fields with the `rope_parameters` of one kind of layer where each kind has its own."""
    by_type = fields.get("rope_parameters")
    if isinstance(by_type, dict):
        own = [value for value in by_type.values() if isinstance(value, dict)]
        fields = (
            fields | {"rope_parameters": by_type.get("full_attention", own[0])} if own else fields
        )
    return {"rope_scaling": None} | plain_rope(fields)


def _shown(fields: dict) -> str:
    shown = [f"{name} = {value!r:.40}" for name, value in sorted(fields.items())[:SHOWN]]
    more = len(fields) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
