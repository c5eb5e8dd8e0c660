"""`Frame`: what a function of a package has around the layers that are stamped into it.

It adds inputs and states, and gives each layer its part of what is kept. In the end it joins the
layers' new rows, and writes them to the states or returns them to the host.

Letters are those of `ane_book.models.base`; n is the number of layers in a package.
"""

from collections.abc import Sequence

from ane_book.conversion.stores import stores
from ane_book.conversion.write.lowering import LoweredBlock
from ane_book.conversion.write.program import FunctionWriter
from ane_book.conversion.write.states import write_states
from ane_book.layout import PER_LAYER, CallShape, Recurrent, Shape
from ane_book.models import find
from ane_book.models.base.lora import slot_shapes
from ane_book.models.base.signature import SHARED, Columns, MaskInput
from ane_book.options import Recipe
import numpy as np


class Frame:
    """The frame of some layers in a function; hidden: the hidden state, if it is not an input.

    values: the function's names of what the next layer takes, by the block's names. own: the same
    of what one layer alone takes, by its number: what it keeps, its own input, an adapter's slots.
    """

    def __init__(
        self,
        function: FunctionWriter,
        config,
        recipe: Recipe,
        call: CallShape,
        layers: range,
        hidden: str | None = None,
    ):
        self.function, self.layers = function, layers
        self.signatures = find(config.architecture).signatures(config)
        self._recipe, self._call = recipe, call
        self._stores = stores(self.signatures, layers, recipe.kv)
        self._states = [store for store in self._stores if store.is_state]
        self._now: dict[str, str] = {}  # the states as read in this call
        self._new: dict[int, dict[str, str]] = {}  # what each layer gave
        self.values: dict[str, str] = {}
        self.own: dict[int, dict[str, str]] = {layer: {} for layer in layers}
        self._add_inputs(hidden or self._input("hidden", Columns(config.hidden_size).shape(call)))
        self._share_stores()
        shapes = slot_shapes(config, recipe.lora_slots)
        if layers and (own := self.signatures[layers.start].own):
            shapes = {PER_LAYER: own.shape(call)[1:]} | shapes
        for name, shape in shapes.items():
            whole = self._input(name, (len(layers), *shape))
            each = self._each(whole, name, len(layers), shape)
            for layer, part in zip(layers, each, strict=True):
                self.own[layer][name] = part

    def _input(self, name: str, shape: Shape) -> str:
        return self.function.input(name, "fp16", shape)

    def _add_inputs(self, hidden: str) -> None:
        """Add the inputs and states of the layers together."""
        self.values["hidden"] = hidden
        for name, given in self.signatures.host(self.layers).items():
            once = MaskInput() if isinstance(given, MaskInput) else given
            self.values[name] = self._input(name, once.shape(self._call))
            if isinstance(given, MaskInput) and (often := given.often(self._call)) > 1:
                (self.values[name],) = self.function.op(
                    "tile", f"{name}_rows", "fp16", [given.shape(self._call)],
                    x=name, reps=np.array([1, 1, often, 1], np.int32),
                )  # fmt: skip
        start = self.layers.start
        for name, channels in self.signatures.handed(start).items():
            self.values[name] = self._input(f"{name}_{start}", Columns(channels).shape(self._call))
        if not all(isinstance(store.kind, Recurrent) for store in self._states):
            self.function.input("position", "int32", (1,))
        for store in self._stores:
            add = self.function.state if store.is_state else self._input
            add(store.name, store.shape(self._call))

    def _share_stores(self) -> None:
        """Read the states, and give each layer what it keeps, or reads of an earlier one."""
        for store, parts in self._stores.items():
            whole, shape = store.name, store.shape(self._call)
            if store.is_state:
                (whole,) = self.function.op(
                    "read_state", f"{store.name}_now", "fp16", [shape], input=store.name
                )
                self._now[store.name] = whole
            each = self._each(whole, store.name, store.n, shape[1:])
            for (layer, name), part in zip(parts, each, strict=True):
                self.own[layer][name] = part
        last: dict[str, str] = {}
        for layer in self.layers:
            read = {n: last[n] for n in self.signatures[layer].reads if n in last}
            self.own[layer] = read | self.own[layer]
            last |= self.own[layer]

    def _each(self, whole: str, name: str, n: int, shape: Shape) -> list[str]:
        """Split what n layers have, (n, *shape), into that of each, (1, *shape)."""
        return [whole] if n == 1 else self.function.op(
            "split", f"{name}_of", "fp16", [(1, *shape)] * n,
            x=whole, axis=np.int32(0), num_splits=np.int32(n),
        )  # fmt: skip

    def feeds(self, layer: int, piece: LoweredBlock) -> dict[str, str]:
        """What a layer's lowered block takes, by its own names."""
        known = self.values | self.own[layer]
        return {name: known[name] for name in piece.inputs}

    @property
    def leaving(self) -> dict[str, str]:
        """The names of what leaves the package with the last layer's results, by the block's."""
        stop = self.layers.stop
        handed = {f"{name}_out": f"{name}_{stop}" for name in self.signatures.handed(stop)}
        return {"hidden_out": "hidden_out"} | handed

    def accept(self, layer: int, results: dict[str, str]) -> None:
        """Take a layer's results, by the block's names, for the layers behind it."""
        given = self.signatures[layer].given
        for name in given:  # channels first, new rows are lent as they are
            results.setdefault(f"{name}_out", results.get(f"new_{name.removeprefix(SHARED)}", ""))
        self._new[layer] = results
        made = {name: results.get(f"{name}_out") for name in ("hidden", *given)}
        self.values |= {name: value for name, value in made.items() if value}

    def close(self, results: Sequence[str]) -> None:
        """Write new rows to the states, return the rest; results: what else leaves the package."""
        stop, rows = self.layers.stop, dict[str, str]()
        handed = {f"{n}_{stop}": (n, R) for n, R in self.signatures.handed(stop).items()}
        for outside, (name, channels) in handed.items():
            if self.values[name] != outside:  # of an earlier layer, or of a package before
                shape = Columns(channels).shape(self._call)
                self.function.op("identity", outside, "fp16", [shape], x=self.values[name])
        for store, parts in self._stores.items():
            shape = store.new(self._call)
            (rows[store.name],) = self.function.op(
                "concat", f"new_{store.name}", "fp16", [shape],
                values=[
                    self._new[layer].get(f"new_{name}") or self._copied(name, shape)
                    for layer, name in parts
                ],
                axis=np.int32(0), interleave=np.bool_(False),
            )  # fmt: skip
        caches = [store for store in self._states if not isinstance(store.kind, Recurrent)]
        if caches:
            how = self._recipe.state_write
            write_states(self.function, how, self._call, caches, self._now, rows)
        for store in self._states:
            if store not in caches:
                name = store.name
                self.function.op("write_state", f"{name}_write", input=name, data=rows[name])
        returned = [rows[store.name] for store in self._stores if not store.is_state]
        self.function.finish([*results, *returned, *handed])

    def _copied(self, name: str, shape: Shape) -> str:
        """The new rows of a cache that layers of another package keep, as this one's copy has them.

        shape: of new rows in all layers here.
        """
        shared = self.values[f"{SHARED}{name}"]  # (1, K * D, 1, T)
        if self._recipe.form == "apple":
            return shared
        _, K, T, D = shape
        (columns,) = self.function.op(
            "reshape", f"{shared}_heads", "fp16", [(1, K, D, T)],
            x=shared, shape=np.array([1, K, D, T], np.int32),
        )  # fmt: skip
        return self.function.op(
            "transpose", f"{shared}_rows", "fp16", [(1, K, T, D)],
            x=columns, perm=np.array([0, 1, 3, 2], np.int32),
        )[0]  # fmt: skip
