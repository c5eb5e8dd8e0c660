"""The compiled products against torch: every form of weight, one token and several."""

from itertools import product
import os
from pathlib import Path
import re
import subprocess
import sys

from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.kernels.native import ops as native_ops
from mlprogram.run import asked
from mlprogram.run.slices import MOST_AXES
import numpy as np
import pytest
import torch

needs_compiler = pytest.mark.skipif(not native.available(), reason=native.status()[1])

FORMS = ("single", "half", "int8", "int8-half", "palette", "blocks")
BLOCK = dict.fromkeys(FORMS, 0) | {"blocks": 32}
SHAPES = [(1, 32, 1), (7, 96, 1), (192, 576, 1), (50, 64, 2), (9, 800, 6), (13, 160, 64)]
SHAPES += [(6, 1536, 70)]


def make(form: str, rows: int, columns: int, seed: int = 0, block=32, dtype=torch.float16):
    """(data, table, dense): a weight as stored, and as the float32 matrix that it stands for.

    block and dtype: of the scales of int4 by blocks.
    """
    random = torch.Generator().manual_seed(seed)
    if form in ("single", "half"):
        data = torch.randn(rows, columns, generator=random)
        data = data if form == "single" else data.half()
        return data, None, data.float()
    if form.startswith("int8"):
        data = torch.randint(-128, 128, (rows, columns), generator=random, dtype=torch.int8)
        table = torch.rand(rows, generator=random) ** 9  # some scale to subnormal halves
        if form == "int8":
            return data, table, data.float() * table[:, None]
        table = table.half()
        return data, table, (data.float() * table.float()[:, None]).half().float()
    nibbles = torch.randint(0, 16, (rows, columns), generator=random, dtype=torch.uint8)
    data = nibbles[:, 0::2] | nibbles[:, 1::2] << 4  # the even column in the low half of a byte
    if form == "blocks":
        table = (torch.rand(rows, columns // block, generator=random) ** 9).to(dtype)
        int4 = (nibbles.float() + 8) % 16 - 8
        scaled = int4 * table.float().repeat_interleave(block, 1)
        return data, table, scaled.to(dtype).float()
    groups = next(g for g in (3, 2, 1) if rows % g == 0)
    table = torch.randn(groups, 16, generator=random)
    return data, table, table.repeat_interleave(rows // groups, 0).gather(1, nibbles.long())


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_products_are_torchs(form, dtype):
    for (rows, columns, tokens), with_bias in product(SHAPES, (False, True)):
        data, table, dense = make(form, rows, columns)
        bias = torch.randn(rows) if with_bias else None
        x = torch.randn(1, columns, 1, tokens).to(dtype)
        added = bias.double()[:, None] if with_bias else 0
        expected = dense.double() @ x[0, :, 0].double() + added
        scale = (dense.double().abs() @ x[0, :, 0].double().abs()).clamp(min=1)
        weight = native.Weight(data, dtype, table, bias, BLOCK[form])
        first = weight.channels_first(x)
        last = weight.channels_last(x[0, :, 0].t()[None])
        assert first.shape == (1, rows, 1, tokens) and last.shape == (1, tokens, rows)
        assert first.dtype == last.dtype == dtype
        for found in (first[0, :, 0], last[0].t()):
            error = (found.double() - expected).abs()
            rounding = expected.abs() * 2**-11 if dtype == torch.float16 else 0  # half an ulp
            assert (error <= scale * 2**-20 + rounding + 1e-7).all(), (rows, columns, tokens)


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
def test_each_weight_is_read_to_the_bit(form):
    """Ties, and what scales to less than half precision's normal numbers, included."""
    columns = 64 if form in ("palette", "blocks") else 57
    data, table, dense = make(form, 96, columns, seed=1)
    weight = native.Weight(data, torch.float32, table, block=BLOCK[form])
    several, one = torch.eye(columns), torch.eye(columns)[:, None]
    assert torch.equal(weight.channels_last(several), dense.t())
    assert torch.equal(torch.cat([weight.channels_last(x) for x in one]), dense.t())


@needs_compiler
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("form", ["int8-half", "blocks"])
def test_every_product_with_a_scale_is_rounded_as_half_precision_is(form, sign):
    """All scales below 256, of which some are subnormal, times all whole numbers."""
    scales = sign * torch.arange(0x5C00, dtype=torch.int16).view(torch.half)[:, None]
    whole = torch.arange(-128, 128) if form == "int8-half" else torch.arange(32) // 2 - 8
    data = whole.to(torch.int8)
    if form == "blocks":
        data = (whole[0::2] & 15 | (whole[1::2] & 15) << 4).to(torch.uint8)
    table, block = (scales, 32) if form == "blocks" else (scales[:, 0], 0)
    weight = native.Weight(data.repeat(len(scales), 1), torch.float16, table, block=block)
    found = torch.empty(len(scales), len(whole))
    weight._expand(weight, found, 0, len(found))
    expected = (whole * scales.float()).half().float()
    if form == "blocks":  # in another order
        found, expected = found.sort().values, expected.sort().values
    assert torch.equal(found, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_columns_in_use_are_the_same_without_the_others(form, dtype):
    """To the bit, and whatever those hold; of them come zeros, and no byte beyond."""
    data, table, _ = make(form, 50, 160)
    weight = native.Weight(data, dtype, table, torch.arange(50.0), BLOCK[form])
    for tokens, used in [(24, 1), (64, 8), (64, 13), (64, 63), (70, 64), (130, 70), (7, 3)]:
        x = torch.randn(160, tokens).to(dtype)
        whole = weight.channels_first(x[None, :, None])[0, :, 0]
        x[:, used:] = torch.nan
        room = torch.full((51, tokens), 7.0).to(dtype)
        weight._matmat(weight, x, room, tokens, used, 2)
        assert torch.equal(room[:50, :used], whole[:, :used])
        assert tokens == 7 or not room[:50, used:].any()  # so few are all computed
        assert (room[50] == 7).all()


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
def test_torch_multiplies_expanded_rows(form, monkeypatch):
    """As where it does so faster than the kernels; and in more than one go."""
    data, table, dense = make(form, 24, 96)
    weight = native.Weight(data, torch.float16, table, torch.arange(24.0), BLOCK[form])
    x = torch.randn(1, 96, 1, 5).half()
    ours = weight.channels_first(x)
    monkeypatch.setattr(native, "several_by_torch", lambda: True)
    monkeypatch.setattr(native, "EXPANDED", 1000)
    found = weight.channels_first(x)
    expected = dense.double() @ x[0, :, 0].double() + torch.arange(24.0)[:, None]
    assert torch.allclose(found[0, :, 0].double(), expected, rtol=2e-3, atol=2e-2)
    assert torch.allclose(found.float(), ours.float(), rtol=2e-3, atol=1e-2)


@needs_compiler
def test_a_batch_and_an_empty_batch():
    data, _, dense = make("half", 9, 40)
    weight = native.Weight(data, torch.float32)
    x = torch.randn(3, 40, 2, 5)
    expected = torch.einsum("rc,nchw->nrhw", dense, x)
    assert torch.allclose(weight.channels_first(x), expected, atol=1e-4)
    assert weight.channels_last(torch.zeros(0, 40)).shape == (0, 9)


@needs_compiler
def test_strided_activations_are_read_right():
    data, _, dense = make("half", 9, 40)
    weight = native.Weight(data, torch.float32)
    x = torch.randn(1, 80, 1, 6)[:, ::2, :, ::2]
    assert torch.allclose(weight.channels_first(x)[0, :, 0], dense @ x[0, :, 0], atol=1e-4)


@needs_compiler
def test_infinities_and_nan_come_through():
    data = torch.ones(2, 32, dtype=torch.float16)
    weight = native.Weight(data, torch.float16)
    x = torch.full((1, 32, 1, 1), 60000.0).half()
    assert torch.isinf(weight.channels_first(x)).all()  # 32 x 60,000 is beyond fp16
    x[0, 3] = float("nan")
    assert torch.isnan(weight.channels_first(x)).all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("rows, open_slots", [(3, 1500), (3, 700), (24, 1500), (70, 1100)])
def test_attention_over_many_slots_is_the_same_in_any_number_of_threads(
    rows, open_slots, dtype, monkeypatch
):
    """Threads share the slots of three heads; slots that are closed and empty change nothing."""
    q, mask = torch.randn(3, rows, 64).to(dtype), torch.zeros(1, 1501).to(dtype)
    cache = [torch.randn(3, n, 64).to(dtype) / 4 for n in (1500, 1, 1500, 1)]
    for part in (cache[0], cache[2]):
        part[:, open_slots:] = 0
    mask[:, open_slots:1500] = -40000
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(native_ops, "threads", lambda count=count: count)
        run = native_ops.attention((3, rows, 64), (1500, 1), 1, dtype)
        found.append(run(q, mask, *cache))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    keys, values = torch.cat(cache[:2], 1).double(), torch.cat(cache[2:], 1).double()
    expected = (q.double() @ keys.mT + mask.double()).softmax(-1) @ values
    exactness = 2**-6 if dtype == torch.float16 else 2**-16
    assert torch.allclose(found[0].double(), expected, rtol=exactness, atol=exactness)
    short = [cache[0][:, :open_slots], cache[1], cache[2][:, :open_slots], cache[3]]
    run = native_ops.attention((3, rows, 64), (open_slots, 1), 1, dtype)
    short_mask = torch.cat([mask[:, :open_slots], mask[:, 1500:]], 1)
    assert torch.equal(run(q, short_mask, *[part.contiguous() for part in short]), found[0])


@needs_compiler
@pytest.mark.parametrize("size", [1, 5, 37])
def test_softmax_of_equal_numbers_however_large(size):
    softmax = native_ops.softmax((3, size), torch.float32, 1)
    for value in (-3.4e38, -1e12, 1e12, 3.4e38):
        found = softmax(torch.full((3, size), value))
        torch.testing.assert_close(found, torch.full((3, size), 1 / size))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("size", [1, 3, 16, 40])
def test_softmax_of_nan_is_nan(size, dtype):
    """Any payload, either sign, at any place."""
    bits, carrier = torch.int32, torch.float32
    values = [0x7FC00000, 0x7FC00001, 0x7FC001FF, 0x7F800001, 0x7FFFFFFF]
    if dtype == torch.float16:
        bits, carrier, values = torch.int16, torch.float16, [0x7E00, 0x7E01, 0x7C01, 0x7FFF]
    sign = torch.iinfo(bits).min
    values = torch.tensor([*values, *[value + sign for value in values]], dtype=bits)
    x = torch.ones(len(values), size, size, dtype=carrier)
    for place in range(size):
        x[:, place, place] = values.view(carrier)
    softmax = native_ops.softmax((*x.shape,), dtype, x.dim() - 1)
    assert torch.isnan(softmax(x)).all()


@needs_compiler
def test_without_a_compiler_the_reason_is_said_and_results_are_the_same(decoder_of, tmp_path):
    path, found = decoder_of(8), tmp_path / "found.npy"
    code = f"""
import numpy as np
from mlprogram import MLProgram
from mlprogram.kernels import native
program = MLProgram({str(path)!r}, precision="fp32")
outputs = program.predict(program.random_inputs(), program.make_state())
np.save({str(found)!r}, outputs["hidden_out"])
print(*native.status())
"""
    environment = os.environ | {"CC": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("False") and "false cannot compile them" in said.stdout
    program = MLProgram(path, precision="fp32")
    expected = program.predict(program.random_inputs(), program.make_state())["hidden_out"]
    made = any(isinstance(value, native.Weight) for value in program._shared.values())
    assert made == native.pays(torch.float16, torch.float32)
    np.testing.assert_allclose(np.load(found), expected, rtol=1e-4, atol=1e-4)


def test_half_pointwise_is_the_plain_convolution():
    from mlprogram.kernels.products import half_pointwise
    from mlprogram.ops.conv import conv

    weight = torch.randn(12, 40).half()
    for tokens in (1, 5):
        x = torch.randn(1, 40, 1, tokens).half()
        plain = conv(x, weight[:, :, None, None])
        found = half_pointwise(x, weight)
        np.testing.assert_allclose(found.numpy(), plain.numpy(), rtol=2e-3, atol=2e-3)


def test_numbers_that_python_and_c_share():
    """Of dtypes, of what is done with elements, of activations and their like."""
    folder = Path(native.__file__).with_name("c")
    text = "".join(file.read_text() for file in folder.iterdir())
    lists = [re.findall(r"\w+", names) for names in re.findall(r"^enum {(.*)};", text, re.M)]
    short = {torch.float32: "SINGLE", torch.float16: "HALF"}
    assert [short.get(d, str(d).removeprefix("torch.").upper()) for d in native.TYPES] in lists
    for each in (native_ops.Activation, native_ops.Rounding, native_ops.Turn):
        assert [*each.__members__] in lists and [*each] == [*range(len(each))]
    (done,) = (names for names in lists if "ADD" in names)
    assert [getattr(asked, name) for name in done] == [*range(len(done))]
    assert f"#define SLICED {MOST_AXES} " in text
