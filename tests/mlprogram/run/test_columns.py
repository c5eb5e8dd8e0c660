"""A call that uses some of its columns gives them to the bit, whatever the others hold, and leaves
others out where they are proved independent: see `run/columns.py`."""

import _decoder
from _decoder import D, G, P, attended
from _foreign import AS_IT_STANDS, build
from _long import long_but
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

C, T = 16, 32
TOKENS, SLOTS = 24, P  # of the decoder
CLOSED = -40000


def linear(x, rng):
    weight = rng.normal(0, 0.3, (C, x.shape[1], 1, 1)).astype(np.float16)
    return mb.conv(x=x, weight=weight, pad_type="valid")


def cut(x, begin, end):
    return mb.slice_by_index(x=x, begin=[0, 0, 0, begin], end=[1, x.shape[1], 1, end])


def halves(x, rng):
    first, second = mb.split(x=x, num_splits=2, axis=1)
    return mb.concat(values=[second, mb.mul(x=first, y=np.float16(-1))], axis=1)


def turned(x, rng):
    there = mb.transpose(x=mb.reshape(x=x, shape=(1, 4, 4, T)), perm=(0, 1, 3, 2))
    there = mb.mul(x=there, y=rng.normal(size=(1, 1, 1, 4)).astype(np.float16))
    return mb.reshape(x=mb.transpose(x=there, perm=(0, 1, 3, 2)), shape=(1, C, 1, T))


#: What leaves columns apart, and what joins them.
APART = {
    "linear": linear,
    "gate": lambda x, rng: mb.mul(x=mb.silu(x=x), y=linear(x, rng)),
    "norm": lambda x, rng: mb.layer_norm(x=x, axes=[1], epsilon=np.float16(1e-3)),
    "sum": lambda x, rng: mb.add(x=x, y=mb.tanh(x=x)),
    "softmax": lambda x, rng: mb.softmax(x=x, axis=1),
    "halves": halves,
    "given": lambda x, rng: mb.add(x=x, y=linear(np.ones((1, C, 1, T), np.float16), rng)),
    "turned": turned,
}
JOINING = {
    "shift": lambda x, rng: mb.concat(values=[cut(x, 1, T), cut(x, 0, 1)], axis=3),
    "over all": lambda x, rng: mb.softmax(x=x, axis=3),
    "reversed": lambda x, rng: mb.concat(values=[cut(x, T // 2, T), cut(x, 0, T // 2)], axis=3),
    "regrouped": lambda x, rng: mb.reshape(
        x=mb.transpose(x=mb.reshape(x=x, shape=(1, T, 1, C)), perm=(0, 3, 2, 1)), shape=(1, C, 1, T)
    ),
    "normed": lambda x, rng: mb.layer_norm(x=x, axes=[3], epsilon=np.float16(1e-3)),
}


def columns_of(program: MLProgram) -> int:
    """How many columns its plan can leave some of out; 0: none."""
    return program.compiled.parts[0].tables.at(0).columns if program.compiled.parts else 0


def check(program: MLProgram, inputs: dict, name: str, used: int) -> None:
    """The first columns of outputs are to the bit what a whole call gives, also if those of `name`
    from there on hold no numbers."""
    whole = program.predict(inputs)
    poisoned = inputs[name].copy()
    poisoned[..., used:] = np.nan
    given = inputs | ({name: poisoned} if columns_of(program) else {})
    for values in (inputs, given):
        for key, found in program.predict(values, used=used).items():
            ours, right = found[..., :used], whole[key][..., :used]
            assert ours.tobytes() == right.tobytes(), key


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("seed", long_but(range(100), 0, 1, 2, 3, 4, 5))
def test_random_programs(tmp_path, seed, precision):
    """Those that leave columns apart leave some out; of those that join them, none does."""
    rng = np.random.default_rng(seed)
    chosen = [*rng.choice([*APART], 5), "linear"]
    joins = seed % 3 == 2
    if joins:
        chosen.insert(rng.integers(1, 5), rng.choice([*JOINING]))

    @build(tmp_path / "p.mlpackage", ((1, C, 1, T), types.fp16), **AS_IT_STANDS)
    def path(x):
        y = linear(x, rng)
        for name in chosen:
            y = (APART | JOINING)[name](y, rng)
        return mb.identity(x=y, name="y")

    program = MLProgram(path, precision=precision)
    assert columns_of(program) == (0 if joins else T), chosen
    x = rng.normal(size=(1, C, 1, T)).astype(np.float16)
    for used in (1, 8, 13, T - 1, T):
        check(program, {"x": x}, "x", used)


@pytest.mark.parametrize("form", [*APART, *JOINING])
def test_each_form_alone(tmp_path, form):
    """Those of `APART` leave columns apart, and none of `JOINING` does."""
    rng = np.random.default_rng(0)

    @build(tmp_path / "p.mlpackage", ((1, C, 1, T), types.fp16), **AS_IT_STANDS)
    def path(x):
        return mb.identity(x=linear((APART | JOINING)[form](linear(x, rng), rng), rng), name="y")

    program = MLProgram(path)
    assert columns_of(program) == (T if form in APART else 0)
    check(program, {"x": rng.normal(size=(1, C, 1, T)).astype(np.float16)}, "x", 13)


#: What may become of attention's operands q, keys, values and mask, and of those of the call, k and
#: v, each (1, G, T, D); whether columns stay apart.
ATTENTION = {
    "as it is": (lambda o: o, True),
    "a mask that is made": (lambda o: o | {"mask": mb.mul(x=o["mask"], y=np.float16(2))}, False),
    "slots of the call": (lambda o: o | {"keys": o["k"]}, False),
    "values of the call": (lambda o: o | {"values": o["v"]}, False),
    "queries in another order": (lambda o: o | {"q": mb.reverse(x=o["q"], axes=[2])}, False),
    "keys in another order": (lambda o: o | {"k": mb.reverse(x=o["k"], axes=[2])}, False),
    "queries that are given": (lambda o: o | {"q": o["keys"]}, True),
}


@pytest.mark.parametrize("form", ATTENTION)
def test_attention_leaves_out_what_is_apart(tmp_path, form):
    rng, (change, apart) = np.random.default_rng(0), ATTENTION[form]
    shapes = (1, C, 1, P), (1, 1, P, 2 * P), *[(1, G, P, D)] * 2  # as many columns as slots

    @build(tmp_path / "p.mlpackage", *[(shape, types.fp16) for shape in shapes], **AS_IT_STANDS)
    def path(x, mask, keys, values):
        qkv = mb.reshape(x=_decoder.linear(x, 3 * G * D, rng), shape=(1, 3 * G, D, P))
        q, k, v = mb.split(x=mb.transpose(x=qkv, perm=(0, 1, 3, 2)), num_splits=3, axis=1)
        o = change({"q": q, "k": k, "v": v, "keys": keys, "values": values, "mask": mask})
        y = attended(o["q"], (o["keys"], o["values"]), (o["k"], o["v"]), o["mask"])
        y = mb.reshape(x=mb.transpose(x=y, perm=(0, 1, 3, 2)), shape=(1, G * D, 1, P))
        return mb.identity(x=linear(y, rng), name="y")

    program = MLProgram(path)
    assert columns_of(program) == (P if apart else 0)
    inputs = program.random_inputs(0)
    inputs["mask"][0, 0] = np.where(np.tri(P, 2 * P, P), 0, CLOSED)
    check(program, inputs, "x", 13)


def decoder_inputs(program: MLProgram, position: int) -> dict:
    """Random inputs, and a mask that opens the slots before the call, and of its own up to each."""
    inputs = program.random_inputs(position)
    mask = np.full((1, 1, TOKENS, SLOTS + TOKENS), CLOSED, np.float16)
    mask[..., :position] = 0
    mask[0, 0, :, SLOTS:][np.tril_indices(TOKENS)] = 0
    return inputs | {"mask": mask, "position": np.array([position], np.int32)}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_decoder(decoder_of, precision):
    """Of a prompt of 5, then of 19 tokens, after which one call of 24 reads what they wrote."""
    program = MLProgram(decoder_of(TOKENS), precision=precision)
    assert columns_of(program) == TOKENS
    ours, right = program.make_state(), program.make_state()
    for position, used in ((0, 5), (5, 19), (0, TOKENS)):
        inputs = decoder_inputs(program, position)
        poisoned = inputs["hidden"].copy()
        poisoned[..., used:] = np.nan
        found = program.predict(inputs | {"hidden": poisoned}, ours, used=used)["hidden_out"]
        whole = program.predict(inputs, right)["hidden_out"]
        assert found[..., :used].tobytes() == whole[..., :used].tobytes()
        for name in program.states:
            rows = slice(position, position + used)
            one, other = (state.read_state(name)[..., rows, :] for state in (ours, right))
            assert one.tobytes() == other.tobytes()


def test_a_mask_that_opens_later_columns_is_obeyed(decoder_of):
    """Then all columns are computed."""
    program = MLProgram(decoder_of(TOKENS))
    inputs = decoder_inputs(program, 3)
    inputs["mask"][0, 0, 4, -1] = -3
    whole, found = (program.predict(inputs, program.make_state(), used=n) for n in (0, 5))
    assert whole["hidden_out"].tobytes() == found["hidden_out"].tobytes()
    inputs["mask"][0, 0, 4, -1], inputs["mask"][0, 0, 5, -1] = CLOSED, -3  # seen by none in use
    found = program.predict(inputs, program.make_state(), used=5)["hidden_out"]
    rest = slice(16, None)  # to which nothing was added
    assert np.array_equal(found[..., rest], inputs["hidden"][..., rest].astype(np.float16))
