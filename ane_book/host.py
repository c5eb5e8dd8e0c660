"""What the host does around the programs of a bundle, as data, and the mask that it makes.

A bundle's manifest holds a `Host`, so that whoever runs it, in whatever language, needs to know of
no architecture.
"""

from collections.abc import Sequence
from typing import Annotated

from ane_book.rope import Factor, Rotary
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

MASKED = -40000.0  # "not attended": large, finite and inside fp16, since the ANE mangles -inf

Window = Annotated[int, Field(gt=0)]


class Host(BaseModel):
    """What a host computes for the programs.

    The rotary tables `x` are the inputs `x_cos` and `x_sin`, (1, 1, T, D): as `Rotary` says, for
    the positions of a call's tokens. A mask is (1, 1, T, S + T): 0 where the token of a row sees
    that of a column, and -40,000 elsewhere. Columns 0 to S - 1 are the slots of the cache, of which
    the first `position` are filled and seen; column S + i is token i of the call, and token t sees
    those with i <= t. With a window it sees only the last so many of all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    embedding_scale: Factor = Field(
        default=1.0, description="What a token's row of the embedding is multiplied by"
    )
    rotary: dict[str, Rotary] = Field(description="Rotary tables by name")
    masks: dict[str, Window | None] = Field(
        description="Masks by name, each with how many tokens a token sees, itself included; "
        "null: all before it. Of an encoder: how many it sees on each side; null: all of its text; "
        "without an entry there is one, `mask`"
    )

    @model_validator(mode="after")
    def _check(self) -> "Host":
        for name, rotary in self.rotary.items():
            if rotary.rotary_dim % 2 or rotary.rotary_dim > rotary.head_dim:
                raise ValueError(
                    f"{name}: {rotary.rotary_dim} of {rotary.head_dim} dimensions are rotated"
                )
            rotary.check()
        return self

    def tables(self, positions: np.ndarray, context: int) -> dict[str, np.ndarray]:
        """The rotary tables of tokens at `positions` (T,), by their inputs' names."""
        found = {}
        for name, rotary in self.rotary.items():
            found[f"{name}_cos"], found[f"{name}_sin"] = rotary.tables(positions, context)
        return found

    def text_masks(
        self, lengths: Sequence[int], tokens: int, band: int | None = None, causal: bool = False
    ) -> dict[str, np.ndarray]:
        """An encoder's masks (1, 1, T, T) of texts side by side, by name; as `text_mask`, which
        says what band and causal are. A mask with an entry has its own band."""
        return {
            name: text_mask(lengths, tokens, own, causal)
            for name, own in (self.masks or {"mask": band}).items()
        }


def causal_mask(position: int, tokens: int, context: int, window: int | None = None) -> np.ndarray:
    """The additive mask (1, 1, T, S + T) float32 of a call with T tokens from slot `position` on,
    as `Host` says; context: S."""
    seen_by = position + np.arange(tokens)[:, None]  # (T, 1)
    columns = np.concatenate([np.arange(context), position + np.arange(tokens)])  # (S + T,)
    hidden = columns > seen_by
    hidden[:, position:context] = True  # slots that are not filled
    if window is not None:
        hidden |= columns <= seen_by - window
    return np.where(hidden, np.float32(MASKED), np.float32(0))[None, None]


def text_mask(
    lengths: Sequence[int], tokens: int, band: int | None = None, causal: bool = False
) -> np.ndarray:
    """The additive mask (1, 1, T, T) float32 of texts side by side; padding sees padding.

    band: how many tokens of its text a token sees on each side; None: all. causal: it sees none
    behind it.
    """
    text = np.repeat(np.arange(len(lengths) + 1), [*lengths, tokens - sum(lengths)])  # (T,)
    hidden, place = text[:, None] != text, np.arange(tokens)
    if band is not None:
        hidden |= np.abs(place[:, None] - place) > band
    if causal:
        hidden |= place > place[:, None]
    return np.where(hidden, np.float32(MASKED), np.float32(0))[None, None]


def text_places(lengths: Sequence[int], tokens: int) -> np.ndarray:
    """The places (T,) of tokens in their texts, which stand side by side; 0 beyond them."""
    places = [np.arange(n) for n in lengths]
    return np.concatenate([*places, np.zeros(tokens - sum(lengths), np.int64)])


def per_layer_columns(rows: np.ndarray, layers: int) -> np.ndarray:
    """What each layer gets of its own, (L, P, 1, T), of the tokens' rows (T, L * P)."""
    return rows.reshape(len(rows), layers, -1).transpose(1, 2, 0)[:, :, None]


def pool(columns: np.ndarray, pooling: str) -> np.ndarray:
    """The one column (C,) of a text's columns (C, n): their mean, or the first ("cls") or last."""
    if pooling == "mean":
        return columns.mean(axis=1)
    return columns[:, 0 if pooling == "cls" else -1]


def check_labels(labels: Sequence[str]) -> None:
    """Raise ValueError unless tokens can be labelled so: O, and B, I, E and S of each kind."""
    kinds = dict.fromkeys(label[2:] for label in labels if label != "O")
    wanted = {"O", *(f"{part}-{kind}" for kind in kinds for part in "BIES")}
    if len(labels) != len(wanted) or set(labels) != wanted or "" in kinds:
        raise ValueError(
            f"labels {', '.join(labels)!r:.200} are not O and, of each kind, B-, I-, E- and S-"
        )
