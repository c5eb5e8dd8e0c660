"""The small packages of a device row, made when they are asked: seeded weights, no file carried.

    convolutions    eight of 3 x 3 and 128 channels, each followed by relu
    layer-host      a decoder layer for one token; the host keeps its cache and passes it in
    layer-state     the same layer, its cache in two states, written by `slice_update`
    state-slice     a state, and a row of it written by `slice_update`: does that last?
    state-select    the same row written by a `select` over the whole state (claim state-slice)

Ops are as they are built here, with no pass of coremltools', so that versions of it make the same.

    C: channels, H: heads, D: channels of a head, S: slots of a cache
"""

from collections.abc import Callable
from pathlib import Path

from mlprogram.progress import silent_coremltools
import numpy as np

with silent_coremltools():
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

C, H, D, S = 768, 12, 64, 64
WIDE = 4 * C  # between the layer's two last products
CACHE = (1, H, S, D)
ROW = (1, H, 1, D)

Made = tuple[dict, Callable]  # placeholders by name, and what computes outputs of them


def make(folder: Path) -> dict[str, Path]:
    """Write the packages into a folder, and return their paths by name.

    Raises OSError if one cannot be written.
    """
    with silent_coremltools():
        return {name: _write(folder / f"{name}.mlpackage", make) for name, make in MADE.items()}


def _write(path: Path, make: Callable[[], Made]) -> Path:
    target = ct.target.iOS18
    inputs, network = make()
    with Function(inputs, opset_version=target) as function:
        function.set_outputs(network(**function.inputs))
    program = Program()
    program.add_function("main", function)
    model = ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=target,
        pass_pipeline=ct.PassPipeline.EMPTY, skip_model_load=True,
    )  # fmt: skip
    model.save(str(path))
    (file,) = path.rglob("*.mlmodel")
    file.write_bytes(model.get_spec().SerializeToString(deterministic=True))  # the same anywhere
    return path


def _convolutions() -> Made:
    weight = _weights(128 * 9 // 2)  # half, since relu takes half

    def network(x):
        for _ in range(8):
            x = mb.relu(x=mb.conv(x=x, weight=weight(128, 128, 3, 3), pad_type="same"))
        return [x]

    return {"x": mb.placeholder((1, 128, 32, 32), types.fp16)}, network


def _layer_host() -> Made:
    def network(hidden, mask, **cache):
        """Keys and values (1, H, S, D) as they were, and this token's row behind them."""
        query, key, value = _projected(hidden)
        keys = mb.concat(values=[cache["keys"], key], axis=2)  # (1, H, S + 1, D)
        values = mb.concat(values=[cache["values"], value], axis=2)
        return [_finished(hidden, query, keys, values, mask), key, value]

    inputs = {"hidden": (1, C, 1, 1), "mask": (1, 1, 1, S + 1), "keys": CACHE, "values": CACHE}
    return {name: mb.placeholder(shape, types.fp16) for name, shape in inputs.items()}, network


def _layer_state() -> Made:
    def network(hidden, mask, position, keys, values):
        query, key, value = _projected(hidden)
        keys, values = _by_slice(keys, key, position), _by_slice(values, value, position)
        return [_finished(hidden, query, keys, values, mask)]

    inputs = {"hidden": (1, C, 1, 1), "mask": (1, 1, 1, S)}
    halves = {name: mb.placeholder(shape, types.fp16) for name, shape in inputs.items()}
    return halves | _position() | _states("keys", "values"), network


def _state_test(write: Callable) -> Made:
    def network(hidden, position, rows):
        """The sum over the slots, (1, H, 1, D), of which every call adds one."""
        row = mb.reshape(x=hidden, shape=ROW)
        return [mb.reduce_sum(x=write(rows, row, position), axes=[2], keep_dims=True)]

    hidden = {"hidden": mb.placeholder((1, C, 1, 1), types.fp16)}
    return hidden | _position() | _states("rows"), network


#: By name, in the order in which they are measured.
MADE: dict[str, Callable[[], Made]] = {
    "convolutions": _convolutions,
    "layer-host": _layer_host,
    "layer-state": _layer_state,
    "state-slice": lambda: _state_test(_by_slice),
    "state-select": lambda: _state_test(_by_select),
}


def _by_slice(state, row, position):
    """The state (1, H, S, D) after its row at `position` was cut in."""
    begin = mb.concat(values=[np.zeros(2, np.int32), position, np.zeros(1, np.int32)], axis=0)
    end = mb.add(x=begin, y=np.array(ROW, np.int32))
    new = mb.slice_update(x=mb.read_state(input=state), update=row, begin=begin, end=end)
    return mb.coreml_update_state(state=state, value=new)


def _by_select(state, row, position):
    """The same by choosing, for every slot, the new row or the old one."""
    slots = np.arange(S, dtype=np.int32).reshape(1, 1, S, 1)
    new = mb.select(cond=mb.equal(x=slots, y=position), a=row, b=mb.read_state(input=state))
    return mb.coreml_update_state(state=state, value=new)


def _projected(hidden):
    """Query (1, H, 1, D), and the rows of key and value, of a normalised token (1, C, 1, 1)."""
    normal, weight = _normal(hidden), _weights(C, seed=1)
    for _ in range(3):
        x = mb.conv(x=normal, weight=weight(C, C, 1, 1), pad_type="valid")
        yield mb.reshape(x=x, shape=ROW)


def _finished(hidden, query, keys, values, mask):
    """The rest of the layer: attention over the slots, and two products with a relu between."""
    weight = _weights(C, seed=2)
    scores = mb.matmul(x=mb.mul(x=query, y=np.float16(D**-0.5)), y=keys, transpose_y=True)
    mixed = mb.matmul(x=mb.softmax(x=mb.add(x=scores, y=mask), axis=-1), y=values)
    out = mb.conv(x=mb.reshape(x=mixed, shape=(1, C, 1, 1)), weight=weight(C, C, 1, 1))
    hidden = mb.add(x=hidden, y=out)
    wide = mb.relu(x=mb.conv(x=_normal(hidden), weight=weight(WIDE, C, 1, 1)))
    return mb.add(x=hidden, y=mb.conv(x=wide, weight=weight(C, WIDE, 1, 1)))


def _normal(x):
    """Divided by the root of its mean square over the channels, (1, C, 1, 1)."""
    square = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[1], keep_dims=True)
    return mb.mul(x=x, y=mb.rsqrt(x=square, epsilon=np.float16(1e-5)))


def _weights(terms: int, seed: int = 0) -> Callable[..., np.ndarray]:
    """Random fp16 weights, one array after the other; sums of `terms` products stay near one."""
    generator = np.random.default_rng(seed)
    return lambda *shape: (generator.standard_normal(shape) * terms**-0.5).astype(np.float16)


def _position() -> dict:
    return {"position": mb.placeholder((1,), types.int32)}


def _states(*names: str) -> dict:
    return {name: mb.state_tensor_placeholder(CACHE, types.fp16) for name in names}
