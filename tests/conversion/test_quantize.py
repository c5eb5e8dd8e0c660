"""Compressed weights: their bounds, their form in a package, and what the packages then compute."""

from functools import partial
import itertools

from _long import long_but
from _tiny import tiny_model
from ane_book.conversion.quantize.encoded import Encoded, encode, palettize, quantize
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book.conversion.write.program import PackageWriter
from ane_book.runtime import Session
from ane_book.weights import Integers
import coremltools as ct
from coremltools.optimize import coreml as cto
from mlprogram import MLProgram
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant
import numpy as np
import pytest
import torch
from torch import nn

COMPRESSED = [name for name in SCHEMES if name != "none"]


def weights(*shape: int, draw: str = "normal") -> torch.Tensor:
    """Numbers as weights have them, fp16-exact: (O, C, 1, 1)."""
    source = np.random.default_rng(5)
    values = {
        "normal": source.standard_normal,
        "heavy tails": partial(source.standard_t, 4),
        "uniform": source.random,
    }[draw](size=(*shape, 1, 1))
    return torch.from_numpy(values / 10).half().float()


def decoded(weight: torch.Tensor, quant: str) -> np.ndarray:
    """What a compressed weight stands for."""
    return encode(weight, SCHEMES[quant]).weight().numpy()


class TestInt8:
    @pytest.mark.parametrize("size", [300.0, 1.0, 1e-3, 1e-5], ids=str)
    def test_no_weight_is_further_off_than_half_a_step(self, size):
        """Down to weights so small that fp16 has no exact scale for them."""
        weight = (weights(24, 100) * size).half().float()
        data, scale = (part.astype(np.float64) for part in quantize(weight, groups=24))
        assert (np.abs(weight.numpy() - data * scale) <= scale / 2).all()
        assert np.abs(data).max() <= 127

    @pytest.mark.parametrize("groups", [1, 6, 24])
    @pytest.mark.parametrize("blocks", [1, 5])
    def test_of_four_bits_in_blocks_neither(self, groups, blocks):
        weight = weights(24, 100)
        data, scale = (part.astype(np.float64) for part in quantize(weight, groups, blocks, bits=4))
        step = scale.repeat(24 // groups, axis=0).repeat(100 // blocks, axis=1)
        assert (np.abs(weight.numpy() - data * step) <= step / 2).all()
        assert np.abs(data).max() == 7

    def test_the_scale_is_the_largest_weight_over_127(self):
        weight = weights(24, 100)
        data, scale = quantize(weight, groups=24)
        largest = weight.abs().amax(dim=(1, 2, 3)).numpy()
        np.testing.assert_allclose(scale.ravel(), largest / 127, rtol=2**-10)
        assert (np.abs(data).max(axis=(1, 2, 3)) >= 126).all()

    def test_a_channel_of_zeros_stays_zero(self):
        weight = weights(3, 8)
        weight[1] = 0
        data, scale = quantize(weight, groups=3)
        assert not data[1].any() and np.isfinite(scale).all()


class TestPalettes:
    @pytest.mark.parametrize("draw", ["normal", "heavy tails", "uniform"])
    @pytest.mark.parametrize(
        ("bits", "excess"), long_but([(4, 0.005), (6, 0.01), (8, 0.04)], (4, 0.005), (6, 0.01))
    )
    def test_the_error_is_that_of_exact_k_means(self, draw, bits, excess):
        """coremltools palettizes with `kmeans1d`, which is exact and takes a hundred times longer.

        Its centres, too, are rounded to fp16.
        """
        from coremltools._deps import kmeans1d

        weight = weights(16, 600, draw=draw)
        exact = kmeans1d.cluster(weight.flatten().tolist(), 1 << bits)
        rounded = np.array(exact.centroids, np.float16).astype(np.float32)[exact.clusters]
        indices, lut = palettize(weight, groups=1, bits=bits)
        ours = lut.astype(np.float32).ravel()[indices.ravel()]
        least = np.square(rounded - weight.numpy().ravel()).sum()
        assert np.square(ours - weight.numpy().ravel()).sum() <= least * (1 + excess)

    def test_every_weight_takes_the_nearest_entry(self):
        weight = weights(32, 40)
        indices, lut = palettize(weight, groups=2, bits=4)
        distance = np.abs(weight.reshape(2, -1, 1).numpy() - lut.reshape(2, 1, 16).astype(float))
        np.testing.assert_array_equal(indices.reshape(2, -1), distance.argmin(axis=2))

    @pytest.mark.parametrize("count", [1, 2, 15, 16])
    @pytest.mark.parametrize("columns", [2, 200])
    def test_weights_of_at_most_16_values_come_back_exactly(self, count, columns):
        """So does a checkpoint that someone palettized before, and a tensor too small for k."""
        values = weights(count, 1).flatten()
        weight = values[torch.randint(count, (4, columns, 1, 1))]
        np.testing.assert_array_equal(decoded(weight, "lut4"), weight.numpy())

    def test_a_palette_depends_on_its_own_group_alone(self):
        weight = weights(64, 50)
        together = palettize(weight, groups=4, bits=4)
        for i, part in enumerate(weight.split(16)):
            indices, lut = palettize(part, groups=1, bits=4)
            np.testing.assert_array_equal(indices, together[0][16 * i : 16 * i + 16])
            np.testing.assert_array_equal(lut[0], together[1][i])


@pytest.mark.parametrize("zero", [True, False])
def test_stored_integers_stand_for_what_their_file_says(zero):
    draw = np.random.default_rng(2)
    zeros = draw.integers(0, 16, (6, 4), dtype=np.uint8) if zero else None
    scale = draw.random((6, 4), np.float32)
    matrix = Integers(draw.integers(0, 16, (6, 32), dtype=np.uint8), scale, zeros, 4)
    found = Encoded.stored(matrix).weight().flatten(1)
    np.testing.assert_array_equal(found.numpy(), matrix.halved())


def product(path, weight: torch.Tensor, quant: str) -> None:
    """A package that holds one 1x1 convolution: x (1, C, 1, C) -> y (1, O, 1, C)."""
    outputs, inputs = weight.shape[:2]
    package = PackageWriter(path)
    stored = package.write_weights({"w": weight}, SCHEMES[quant])
    function = package.function("main")
    function.input("x", "fp16", (1, inputs, 1, inputs))
    w = function.weight("w", stored["w"])
    function.op(
        "conv", "y", "fp16", [(1, outputs, 1, inputs)], x="x", weight=w,
        strides=np.ones(2, np.int32), pad_type=np.str_("valid"), pad=np.zeros(4, np.int32),
        dilations=np.ones(2, np.int32), groups=np.int32(1),
    )  # fmt: skip
    function.finish(["y"])
    package.finish("main", "a product")


@pytest.mark.parametrize("quant", COMPRESSED)
def test_the_executor_reads_the_very_weights(tmp_path, quant):
    """The product with the identity is the weight itself, as declared: rounded to half."""
    weight = weights(48, 64)
    product(tmp_path / "p.mlpackage", weight, quant)
    expected = decoded(weight, quant)[:, :, 0, 0]
    for precision, optimize in itertools.product(("fp16", "fp32"), (True, False)):
        program = MLProgram(tmp_path / "p.mlpackage", precision=precision, optimize=optimize)
        found = program.predict({"x": np.eye(64)[None, :, None]})["y"][0, :, 0]
        np.testing.assert_array_equal(found, expected, f"{precision}, optimize={optimize}")


def form(operation) -> tuple:
    """How an op is written: its type, and what of its operands the weight file fixes.

    A single scale coremltools writes into the program, which is its affair.
    """
    operands = {}
    for key, argument in operation.inputs.items():
        (binding,) = argument.arguments
        single = key == "scale" and operation.type.startswith("constexpr_blockwise")
        assert binding.value.WhichOneof("value") == "blobFileValue" or single
        operands[key] = binding.value.type.SerializeToString()
    output = operation.outputs[0].type.SerializeToString()
    return operation.type, operands, sorted(operation.attributes), output


def stored_as(package: Package) -> dict:
    """Each operand of the compressed constants as the weight file has it, reader-checked."""
    return {
        (operation.type, key): (
            value.type,
            value.array().dtype,
            value.stored_bytes or value.array().nbytes,
        )
        for operation in package.functions["main"].operations()
        if operation.type.startswith("constexpr")
        for key, (value,) in operation.inputs.items()
        if isinstance(value, Constant)
    }


@pytest.fixture(scope="module")
def plain():
    """One convolution, in torch and as coremltools converts it."""
    layer = nn.Conv2d(1280, 32, 1, bias=False).eval()  # smaller ones coremltools leaves alone
    x = torch.zeros(1, 1280, 1, 4)
    return layer, ct.convert(
        torch.jit.trace(layer, x),
        inputs=[ct.TensorType("x", x.shape, dtype=np.float16)],
        outputs=[ct.TensorType("y", dtype=np.float16)],
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )


@pytest.mark.parametrize("quant", COMPRESSED)
def test_a_package_has_what_coremltools_would_write(tmp_path, plain, quant):
    """Op, operands, types, shapes and stored dtypes of coremltools' own quantizers, iOS 18."""
    layer, model = plain
    scheme = SCHEMES[quant]
    if scheme.form == "linear":
        sizes = {"granularity": "per_channel" if scheme.channels else "per_tensor"}
        if scheme.block:
            sizes = {"granularity": "per_block", "block_size": scheme.block}
        options = cto.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype=f"int{scheme.bits}", **sizes
        )
        compress = cto.linear_quantize_weights
    else:
        sizes = {"granularity": "per_grouped_channel", "group_size": scheme.channels}
        options = cto.OpPalettizerConfig(nbits=scheme.bits, **sizes)
        compress = cto.palettize_weights
    theirs = compress(model, cto.OptimizationConfig(global_config=options))
    product(tmp_path / "ours.mlpackage", layer.weight.detach(), quant)
    ours = ct.models.MLModel(str(tmp_path / "ours.mlpackage"), skip_model_load=True)
    forms, files = [], []
    for found in (theirs, ours):
        block = found.get_spec().mlProgram.functions["main"].block_specializations["CoreML8"]
        forms.append([form(op) for op in block.operations if op.type.startswith("constexpr")])
        files.append(stored_as(Package.from_spec(found.get_spec(), found.weights_dir)))
    assert len(forms[0]) == 1 and forms[0] == forms[1]
    assert len(files[0]) == 2 and files[0] == files[1]


@pytest.mark.parametrize(("family", "quant"), [("llama", "lut4"), ("qwen2", "int8")])
def test_a_bundle_computes_with_the_compressed_weights(tiny_bundle, family, quant):
    """Against `transformers` with each projection's weight replaced by what was stored."""
    _, bundle = tiny_bundle(family, quant=quant, shard_limit=100_000)
    model = tiny_model(family)
    with torch.no_grad():
        head = model.lm_head.weight.clone()  # no longer the embedding's
        model.lm_head.weight = nn.Parameter(head, requires_grad=False)
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            replace(quant, attention.q_proj, attention.k_proj, attention.v_proj)
            replace(quant, mlp.gate_proj, mlp.up_proj)
            replace(quant, attention.o_proj)
            replace(quant, mlp.down_proj)
        replace(quant, model.lm_head)
    ids = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(4))
    expected = model(ids).logits[0].numpy()
    found = Session(bundle, precision="fp32").logits(ids[0].tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


def replace(quant: str, *layers: nn.Linear) -> None:
    """Compress the weights of layers that conversion fuses, and put what comes out in place."""
    fused = torch.cat([layer.weight for layer in layers])[:, :, None, None]
    stored = torch.from_numpy(decoded(fused, quant))[:, :, 0, 0]
    for layer, part in zip(layers, stored.split([len(x.weight) for x in layers]), strict=True):
        layer.weight.copy_(part)
