"""Networks that are no decoders, by both of coremltools' paths from torch, against torch itself.

Vision and sequences; shapes fixed, enumerated and ranged; targets from iOS 15 on.
"""

from _foreign import WAYS, agree, check, exported, normal, package, quiet, reference, seeded
from _long import long_but
import coremltools as ct
from mlprogram import MLProgram
import numpy as np
from PIL import Image
import pytest
import torch
from torch import nn
from torch.nn import functional as F

TARGETS = [ct.target.iOS15, ct.target.iOS17]

# --- vision -----------------------------------------------------------------------------------


class Vision(nn.Module):
    """x (1, 3, 16, 16) -> an image (1, 2, 32, 32) and scores (1, 5)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6())
        self.depthwise = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.grouped = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1, groups=4), nn.PReLU(24))
        self.norms = nn.ModuleList([nn.GroupNorm(4, 24), nn.InstanceNorm2d(24, affine=True)])
        self.up = nn.ConvTranspose2d(24, 8, 4, stride=2, padding=1)
        self.shuffle = nn.Conv2d(8, 8, 1)
        self.scores = nn.Linear(24 * 4 + 24, 5)

    def forward(self, x):
        x = self.stem(x)  # (1, 16, 8, 8)
        x = x + F.hardswish(self.depthwise(x))
        x = self.grouped(x)  # (1, 24, 8, 8)
        x = self.norms[0](x) + F.leaky_relu(self.norms[1](x), 0.1)
        pooled = F.adaptive_avg_pool2d(x, 2).flatten(1)  # (1, 24 * 4)
        peak = F.adaptive_max_pool2d(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 1)
        y = self.up(F.max_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1))  # (1, 8, 16, 16)
        y = y + F.interpolate(x[:, :8], scale_factor=2, mode="bilinear", align_corners=False)
        y = y * F.interpolate(x[:, 8:16], size=(16, 16), mode="nearest")
        y = F.pixel_shuffle(self.shuffle(F.elu(y)), 2)  # (1, 2, 32, 32)
        return y, self.scores(torch.cat([pooled, peak.flatten(1)], 1)).softmax(-1)


@pytest.mark.parametrize("target", long_but(TARGETS, ct.target.iOS17))
def test_vision(target, tmp_path):
    model, x = seeded(Vision), normal(1, 3, 16, 16)
    path = package(
        model,
        tmp_path / "vision.mlpackage",
        (torch.from_numpy(x),),
        inputs=[ct.TensorType("x", x.shape)],
        outputs=[ct.TensorType("image"), ct.TensorType("scores")],
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT16,
    )
    check(model, path, [(x,), (x[..., ::-1].copy(),)], "image scores")


class Blocks(nn.Module):
    """A network that takes any even size: x (N, 3, H, W) -> (N, 6, H, W) and (N, 6)."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding="same"), nn.BatchNorm2d(6), nn.SiLU())
        self.second = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        low = F.avg_pool2d(self.first(x), 2)
        y = F.interpolate(self.second(low), scale_factor=2, mode="nearest")
        return y, y.flatten(2).mean(2)


def test_ranged_shapes_and_some_of_them_fixed(tmp_path):
    """coremltools' `materialize_dynamic_shape_mlmodel` makes a function for each size asked for."""
    model = seeded(Blocks)
    sizes = [ct.RangeDim(1, 4), 3, ct.RangeDim(4, 32, default=8), ct.RangeDim(4, 32, default=8)]
    path = package(
        model,
        tmp_path / "ranged.mlpackage",
        (torch.zeros(1, 3, 8, 8),),
        inputs=[ct.TensorType("x", sizes)],
        outputs=[ct.TensorType("y"), ct.TensorType("mean")],
    )
    calls = [(normal(*shape),) for shape in ((1, 3, 4, 4), (3, 3, 10, 6), (4, 3, 32, 8))]
    check(model, path, calls, "y mean")
    fixed, whole = tmp_path / "fixed.mlpackage", ct.models.MLModel(str(path), skip_model_load=True)
    shapes = {"small": (1, 3, 4, 6), "large": (2, 3, 16, 8)}
    with quiet():
        ct.utils.materialize_dynamic_shape_mlmodel(
            whole, {name: {"x": shape} for name, shape in shapes.items()}, str(fixed)
        )
    for name, shape in shapes.items():
        assert MLProgram(fixed, name).inputs["x"].shape == shape
        check(model, fixed, [(normal(*shape),)], "y mean", function=name)


class Stream(nn.Module):
    """A causal convolution over a stream: the last frames of a chunk are the state of the next."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 5)
        self.register_buffer("past", torch.zeros(1, 4, 4))

    def forward(self, x):
        x = torch.cat([self.past, x], -1)
        self.past[:] = x[..., -4:]
        return self.conv(x)


def test_chunks_of_enumerated_lengths_with_a_state(tmp_path):
    model, x = seeded(Stream), normal(1, 4, 24)
    lengths = ct.EnumeratedShapes([(1, 4, n) for n in (1, 4, 8)], default=(1, 4, 1))
    past = ct.TensorType(shape=model.past.shape, dtype=np.float16)
    path = package(
        model,
        tmp_path / "stream.mlpackage",
        (torch.zeros(1, 4, 4),),
        inputs=[ct.TensorType("x", lengths)],
        outputs=[ct.TensorType("y")],
        states=[ct.StateType(past, name="past")],
    )
    whole = reference(model.conv, np.pad(x, [(0, 0), (0, 0), (4, 0)]))[0]  # all frames at once
    ends = [8, 9, 13, 14, 22, 23, 24]
    chunks = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    agree(path, [{"x": x[..., c]} for c in chunks], [{"y": whole[..., c]} for c in chunks])


LABELS = ["cat", "dog", "ox"]


def test_an_image_classifier(tmp_path):
    """The commonest model there is: a picture, scaled inside, to a label and its probability."""
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    model = seeded(nn.Sequential, *layers, nn.Flatten(), nn.Linear(8, len(LABELS)), nn.Softmax(-1))
    path = package(
        model,
        tmp_path / "classifier.mlpackage",
        (torch.zeros(1, 3, 8, 12),),
        inputs=[ct.ImageType("image", (1, 3, 8, 12), scale=1 / 127.5, bias=[-1, -0.9, -1.1])],
        classifier_config=ct.ClassifierConfig(LABELS),
        minimum_deployment_target=ct.target.iOS15,
    )
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    x = (pixels / 127.5 + [-1, -0.9, -1.1]).astype(np.float32).transpose(2, 0, 1)[None]
    (expected,) = reference(model, x)
    for precision, optimize in WAYS:
        program = MLProgram(path, None, precision, optimize=optimize)
        label, scores = program.predict({"image": Image.fromarray(pixels)}).values()
        assert label == LABELS[expected.argmax()] and list(scores) == LABELS
        np.testing.assert_allclose([*scores.values()], expected[0], atol=2e-3)


# --- sequences ---------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Two LSTM layers in both directions, a GRU and an RNN over them; ids (1, T) -> (1, T, 5)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 12)
        self.lstm = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(20, 8, batch_first=True)
        self.rnn = nn.RNN(8, 6, batch_first=True)
        self.out = nn.Linear(6, 5)

    def forward(self, ids):
        x, (hidden, cell) = self.lstm(self.embed(ids))
        x, _ = self.rnn(self.gru(x)[0])
        return self.out(x).log_softmax(-1), hidden, cell


@pytest.mark.parametrize("target", long_but(TARGETS, ct.target.iOS17))
def test_a_tagger(target, tmp_path):
    model = seeded(Tagger)
    ids = np.random.default_rng(0).integers(0, 31, (1, 7)).astype(np.int32)
    path = package(
        model,
        tmp_path / "tagger.mlpackage",
        (torch.from_numpy(ids),),
        inputs=[ct.TensorType("ids", ids.shape, dtype=np.int32)],
        outputs=[ct.TensorType(name) for name in ("tags", "hidden", "cell")],
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT16,
    )
    check(model, path, [(ids,)], "tags hidden cell")


# --- torch.export -----------------------------------------------------------------------------


class Encoder(nn.Module):
    """torch's own transformer layer over tokens; ids (1, T) -> (1, T, 7)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.out = nn.Linear(16, 7)

    def forward(self, ids):
        return self.out(self.layer(self.embed(ids))).log_softmax(-1)


class Running(nn.Module):
    """A buffer that is written becomes a state: the running sum of what came in."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def test_exported_networks(tmp_path):
    size = torch.export.Dim("size", min=2, max=16)
    model, example = seeded(Blocks), torch.zeros(1, 3, 8, 8)
    path = exported(model, tmp_path / "blocks.mlpackage", (example,))
    names = " ".join(MLProgram(path).outputs)
    check(model, path, [(normal(1, 3, 8, 8),)], names)
    model, example = seeded(Encoder), torch.zeros((1, 5), dtype=torch.int32)
    path = exported(model, tmp_path / "encoder.mlpackage", (example,), {"ids": {1: size}})
    calls = [(np.arange(length, dtype=np.int32)[None],) for length in (2, 9, 16)]
    check(model, path, calls, next(iter(MLProgram(path).outputs)))


def test_an_exported_buffer_is_a_state(tmp_path):
    path = exported(Running(), tmp_path / "running.mlpackage", (torch.zeros(3),))
    (state,), (output,) = MLProgram(path).states, MLProgram(path).outputs
    assert state == "total"
    steps = [normal(3, seed=seed) for seed in range(4)]
    agree(path, [{"x": x} for x in steps], [{output: 2 * y} for y in np.cumsum(steps, axis=0)])
