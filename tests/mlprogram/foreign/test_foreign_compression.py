"""Weights that coremltools' own optimizers compressed: every kind, before iOS 18 and since.

Three answers must be one: the executor's on the compressed package, the executor's on the package
that coremltools decompressed, and torch's with the weights that came out. What torch's side of
coremltools compresses (palettes by k-means, activations in 8 bits) is compared with torch alone.
"""

import copy
import logging

from _foreign import WAYS, agree, halved, normal, package, quiet, same
from _long import long_but
import coremltools as ct
from coremltools.optimize import coreml as cto
from coremltools.optimize.torch.palettization import (
    PostTrainingPalettizer,
    PostTrainingPalettizerConfig,
)
from coremltools.optimize.torch.quantization import LinearQuantizer, LinearQuantizerConfig
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest
import torch
from torch import nn

LAYERS = ("conv", "mix", "out")
X = normal(1, 16, 4, 4)


class Net(nn.Module):
    """A spatial convolution, a 1x1 one and a linear layer; x (1, 16, 4, 4) -> (1, 32)."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)
        self.mix = nn.Conv2d(32, 32, 1)
        self.out = nn.Linear(32 * 16, 32)

    def forward(self, x):
        x = torch.tanh(self.mix(torch.relu(self.conv(x))))
        return self.out(x.flatten(1))


def vectors() -> Net:
    """A net whose weights are made of 8 pairs of numbers along the output channels."""
    net = Net()
    for layer in LAYERS:
        weight = getattr(net, layer).weight.data
        palette = torch.randn(8, 2) / 10
        chosen = palette[torch.randint(8, (len(weight) // 2, *weight.shape[1:]))]
        weight.copy_(chosen.movedim(-1, 1).reshape(weight.shape))
    return net


def convert(net, path, target=ct.target.iOS18, **options):
    """Convert a net as it is; returns the model, saved."""
    options |= {"inputs": [ct.TensorType("x", X.shape)], "outputs": [ct.TensorType("y")]}
    package(net, path, (torch.from_numpy(X),), minimum_deployment_target=target, **options)
    return ct.models.MLModel(str(path), skip_model_load=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(net, model) by name and precision, before compression."""
    folder = tmp_path_factory.mktemp("nets")
    torch.manual_seed(0)
    plain, paired = halved(Net()), halved(vectors())
    found = {}
    for precision in ct.precision.FLOAT16, ct.precision.FLOAT32:
        for name, net, target in (
            ("iOS16", plain, ct.target.iOS16),
            ("iOS18", plain, ct.target.iOS18),
            ("paired", paired, ct.target.iOS18),
        ):
            path = folder / f"{name} {precision.value}.mlpackage"
            found[name, precision] = net, convert(net, path, target, compute_precision=precision)
    return found


def palettize(joint=False, **config):
    config = {"mode": "uniform", "weight_threshold": 0} | config
    config = cto.OptimizationConfig(cto.OpPalettizerConfig(**config))
    return lambda model: cto.palettize_weights(model, config, joint_compression=joint)


def quantize(joint=False, **config):
    config = {"mode": "linear_symmetric", "weight_threshold": 0} | config
    config = cto.OptimizationConfig(cto.OpLinearQuantizerConfig(**config))
    return lambda model: cto.linear_quantize_weights(model, config, joint_compression=joint)


def prune(**config):
    config = cto.OptimizationConfig(cto.OpMagnitudePrunerConfig(weight_threshold=0, **config))
    return lambda model: cto.prune_weights(model, config)


CHANNELS = {"granularity": "per_grouped_channel"}
LUT, SPARSE = "constexpr_lut_to_dense", "constexpr_sparse_to_dense"
AFFINE, SCALED = "constexpr_affine_dequantize", "constexpr_blockwise_shift_scale"
SPARSE_LUT, SPARSE_SCALED = "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"

#: name -> (model, steps one after the other, the ops that hold the weights then)
COMPRESSIONS = {
    **{
        f"{target} lut{bits}": (target, [palettize(nbits=bits)], {LUT})
        for target, kinds in (("iOS16", (1, 2, 4, 6, 8)), ("iOS18", (1, 2, 3, 4, 6, 8)))
        for bits in kinds
    },
    "iOS16 int8": ("iOS16", [quantize(mode="linear")], {AFFINE}),
    "iOS16 int8 tensor": ("iOS16", [quantize(granularity="per_tensor")], {AFFINE}),
    "iOS16 uint8": ("iOS16", [quantize(mode="linear", dtype="uint8")], {AFFINE}),
    "iOS16 sparse": ("iOS16", [prune(target_sparsity=0.6)], {SPARSE}),
    "lut6 groups of 8": ("iOS18", [palettize(nbits=6, group_size=8, **CHANNELS)], {LUT}),
    "lut4 input channels": (
        "iOS18",
        [palettize(nbits=4, group_size=4, channel_axis=1, **CHANNELS)],
        {LUT},
    ),
    "lut4 scaled channels": (
        "iOS18",
        [palettize(nbits=4, group_size=8, enable_per_channel_scale=True, **CHANNELS)],
        {LUT, SCALED},
    ),
    "lut3 of vectors": (
        "paired",
        [palettize(mode="unique", group_size=8, cluster_dim=2, **CHANNELS)],
        {LUT},
    ),
    "int8": ("iOS18", [quantize(mode="linear")], {SCALED}),
    "int8 tensor": ("iOS18", [quantize(granularity="per_tensor")], {SCALED}),
    "uint8 blocks": (
        "iOS18",
        [quantize(mode="linear", dtype="uint8", granularity="per_block", block_size=8)],
        {SCALED},
    ),
    "int4": ("iOS18", [quantize(dtype="int4")], {SCALED}),
    "int4 blocks": (
        "iOS18",
        [quantize(dtype="int4", granularity="per_block", block_size=16)],
        {SCALED},
    ),
    "int4 blocks of 32": (  # which a product reads as they are
        "iOS18",
        [quantize(dtype="int4", granularity="per_block", block_size=32)],
        {SCALED},
    ),
    "uint4 blocks": (
        "iOS18",
        [quantize(mode="linear", dtype="uint4", granularity="per_block", block_size=4)],
        {SCALED},
    ),
    "sparse": ("iOS18", [prune(target_sparsity=0.6)], {SPARSE}),
    "sparse 2 of 4": ("iOS18", [prune(n_m_ratio=(2, 4))], {SPARSE}),
    "sparse lut4": (
        "iOS18",
        [prune(target_sparsity=0.6), palettize(joint=True, nbits=4)],
        {SPARSE, SPARSE_LUT},
    ),
    "sparse lut4 groups": (
        "iOS18",
        [prune(target_sparsity=0.6), palettize(joint=True, nbits=4, group_size=8, **CHANNELS)],
        {SPARSE, SPARSE_LUT},
    ),
    "sparse int8": (
        "iOS18",
        [prune(target_sparsity=0.6), quantize(joint=True)],
        {SPARSE, SPARSE_SCALED},
    ),
    "sparse int4 blocks": (
        "iOS18",
        [
            prune(n_m_ratio=(2, 4)),  # a block that is all zero makes coremltools divide 0 by 0
            quantize(joint=True, dtype="int4", granularity="per_block", block_size=8),
        ],
        {SPARSE, SPARSE_SCALED},
    ),
    "lut4 in int8": (
        "iOS18",
        [
            palettize(nbits=4, group_size=8, **CHANNELS),
            quantize(joint=True, mode="linear", granularity="per_tensor"),
        ],
        {LUT, SCALED},
    ),
    "sparse lut4 in int8": (
        "iOS18",
        [
            prune(target_sparsity=0.6),
            palettize(joint=True, nbits=4),
            quantize(joint=True, granularity="per_tensor"),
        ],
        {SPARSE, SPARSE_LUT, SCALED},
    ),
}


def constants(path) -> set[str]:
    """The op types that make the constants of a package."""
    operations = MLProgram(path).package.functions["main"].operations()
    return {o.type for o in operations if o.type.startswith("constexpr_")}


#: One of each op, in programs of single precision too: scales and palettes have their dtype.
IN_FULL = (
    "iOS16 lut4", "iOS16 int8", "lut4 scaled channels", "lut3 of vectors", "int4 blocks",
    "int4 blocks of 32", "sparse", "sparse lut4 groups", "sparse int8",
)  # fmt: skip


#: Long: their neighbours are quick, and `test_weight_file.py` has every number of bits.
LONG = (
    "iOS16 lut1", "iOS16 lut2", "iOS16 lut8", "iOS18 lut1", "iOS18 lut2", "iOS18 lut6",
    "iOS18 lut8", "sparse int8", "sparse lut4", "int8 tensor", "iOS16 lut6", "iOS18 lut3",
    "iOS16 int8 tensor", "iOS16 uint8", "int4", "sparse 2 of 4",
)  # fmt: skip
HALF, FULL = ct.precision.FLOAT16, ct.precision.FLOAT32
CASES = long_but(
    [(name, HALF) for name in COMPRESSIONS], *((n, HALF) for n in COMPRESSIONS if n not in LONG)
)
CASES += long_but([(name, FULL) for name in IN_FULL], *((name, FULL) for name in IN_FULL[2:5]))


@pytest.mark.parametrize("name, precision", CASES)
def test_compressed_weights(models, name, precision, tmp_path):
    """What expands to half is rounded to half, in whatever precision the program runs."""
    source, steps, kinds = COMPRESSIONS[name]
    net, model = models[source, precision]
    for step in steps:
        model = step(model)
    path, plain = tmp_path / "compressed.mlpackage", tmp_path / "plain.mlpackage"
    model.save(str(path))
    assert constants(path) == kinds
    dense = cto.decompress_weights(model)
    dense.save(str(plain))
    assert not constants(plain)
    net, found = copy.deepcopy(net), cto.get_weights_metadata(dense, weight_threshold=0)
    for layer in LAYERS:
        values = next(v.val for k, v in found.items() if k.startswith(f"{layer}_weight"))
        getattr(net, layer).weight.data = torch.from_numpy(values).float()
    expected = {"y": net(torch.from_numpy(X)).numpy()}
    half = 1e-5 if precision == ct.precision.FLOAT32 else 2e-3
    found = agree(path, [{"x": X}], [expected], half, single=1e-5)
    if name == "int4 blocks of 32" and native.instruction_set() not in (None, "plain"):
        program = MLProgram(path)
        program.predict({"x": X})
        made = [w for w in program._shared.values() if isinstance(w, native.Weight)]
        assert 32 in [w.matrix.block for w in made]
    for way, (one,) in zip(WAYS, found, strict=True):
        other = MLProgram(plain, None, way[0], optimize=way[1]).predict({"x": X})
        same(one, other, 1e-5 if way[0] == "fp32" else half, "decompressed")


@pytest.mark.parametrize(
    "config",
    [
        {"n_bits": 4, "cluster_dim": 2, "granularity": "per_grouped_channel", "group_size": 8},
        {
            "n_bits": 4,
            "granularity": "per_grouped_channel",
            "group_size": 8,
            "enable_per_channel_scale": True,
        },
        {"n_bits": 6, "lut_dtype": "int8", "granularity": "per_tensor"},
    ],
    ids=["vectors", "scaled channels", "palette in int8"],
)
def test_palettes_from_torch(models, config, tmp_path):
    logging.getLogger("coremltools.optimize").setLevel(logging.WARNING)
    config = PostTrainingPalettizerConfig.from_dict({"global_config": config})
    net = PostTrainingPalettizer(
        copy.deepcopy(models["iOS18", ct.precision.FLOAT16][0]), config
    ).compress(num_kmeans_workers=1)
    path = tmp_path / "palettes.mlpackage"
    convert(net.eval(), path)
    assert LUT in constants(path)
    with torch.no_grad():
        expected = {"y": net(torch.from_numpy(X)).numpy()}
    agree(path, [{"x": X}], [expected], single=2e-3)  # torch's palette is not rounded to half


@pytest.mark.parametrize("target", [ct.target.iOS17, ct.target.iOS18])
def test_activations_in_8_bits(models, target, tmp_path):
    settings = {"milestones": [0, 1, 2, 2], "quantization_scheme": "affine"}
    config = LinearQuantizerConfig.from_dict({"global_config": settings})
    net = copy.deepcopy(models["iOS18", ct.precision.FLOAT16][0]).train()
    quantizer = LinearQuantizer(net, config)
    with quiet():
        net = quantizer.prepare(example_inputs=(torch.from_numpy(X),))
        for seed in range(4):
            quantizer.step()
            net(torch.from_numpy(normal(*X.shape, seed=seed)))
        net = quantizer.finalize().eval()
    path = tmp_path / "w8a8.mlpackage"
    convert(net, path, target, compute_precision=ct.precision.FLOAT32)
    types = [operation.type for operation in MLProgram(path).operations]
    assert types.count("quantize") == types.count("dequantize") == 6
    with torch.no_grad():
        expected = {"y": net(torch.from_numpy(X)).numpy()}
    agree(path, [{"x": X}], [expected])
    assert constants(path) == {AFFINE if target == ct.target.iOS17 else SCALED}
    assert np.isfinite(expected["y"]).all()
