"""Experts of different size side by side in int8: which of them survive, through the executor.

A scale is shared by a tensor or by an output channel. The output channels of a gate-and-up bank
belong each to one expert; those of a packed down bank to all of them, since experts lie along its
input channels there.
"""

from ane_book import MLProgram
from ane_book.conversion.quantize.schemes import find_scheme
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter
from ane_book.models.base.experts import Experts
from ane_book.models.base.experts.layers import Mixture
import numpy as np
import pytest
import torch

E, C, F, T = 16, 64, 96, 16
SIZES = np.geomspace(1, 0.01, E)  # of the experts: what a bank's weights are multiplied with


def swiglu(gate, up):
    return torch.sigmoid(gate) * gate * up


@pytest.fixture(scope="module")
def pieces():
    """Strategy -> its layout, the mixture in torch, and lowered."""
    examples = {"x": torch.zeros(1, C, 1, T), "gates": torch.zeros(1, E, 1, T)}
    made = {}
    for strategy in ("dispatch", "packed"):
        layout = Experts(E, C, F, strategy, theirs="e")
        mixture = Mixture(layout, swiglu)
        made[strategy] = layout, mixture, lower(mixture, examples, ["y"])
    return made


def cosines(piece, tmp_path, quant: str, loud: str, times=1.0) -> np.ndarray:
    """Of each expert's answer alone in a package to that in float32, (E,).

    loud: the bank whose experts differ by `SIZES`. times: what gates are multiplied with, the
    down bank being divided by it.
    """
    layout, mixture, lowered = piece
    rng = np.random.default_rng(0)
    stacks = {
        "e.gate_up_proj": rng.standard_normal((E, 2 * F, C)) / np.sqrt(C),
        "e.down_proj": rng.standard_normal((E, C, F)) / np.sqrt(F),
    }
    stacks[f"e.{loud}"] *= SIZES[:, None, None]
    stacks["e.down_proj"] /= np.broadcast_to(times, E)[:, None, None]
    state = {}
    for name, (part,) in layout.parameters().items():
        own = mixture.get_parameter(name.removeprefix("mixture."))
        rows = torch.from_numpy(part.rows(stacks[part.name].astype(np.float32)))
        state[name.removeprefix("mixture.")] = rows.view(own.shape)
    mixture.load_state_dict(state)
    package = PackageWriter(tmp_path / "bank.mlpackage")
    stored, function = package.write_weights(state, find_scheme(quant)), package.function("main")
    inputs = {
        "x": function.input("x", "fp16", (1, C, 1, T)),
        "gates": function.input("gates", "fp16", (1, E, 1, T)),
    }
    function.finish(function.stamp(lowered, "mixture", inputs, stored, {"y": "y"}))
    package.finish("main", "a bank of experts")
    program, found = MLProgram(tmp_path / "bank.mlpackage"), []
    for expert in range(E):
        x = rng.standard_normal((1, C, 1, T)).astype(np.float16)
        gates = np.zeros((1, E, 1, T), np.float16)
        gates[0, expert] = np.broadcast_to(times, E)[expert]
        ours = program.predict({"x": x, "gates": gates})["y"].astype(np.float64).ravel()
        with torch.inference_mode():
            theirs = mixture(torch.from_numpy(x).float(), torch.from_numpy(gates).float())
        theirs = theirs.double().numpy().ravel()
        found.append(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs))
    return np.array(found)


GATES, DOWN = "gate_up_proj", "down_proj"


@pytest.mark.parametrize(
    ("strategy", "quant", "loud", "times"),
    [
        ("dispatch", "int8-tensor", GATES, 1.0),  # by themselves experts have scales of their own
        ("dispatch", "int8", DOWN, 1.0),
        ("packed", "none", DOWN, 1.0),
        ("packed", "int8", GATES, 1.0),  # a scale for each channel
        ("packed", "int8", DOWN, SIZES),  # an expert's size is moved into its gate
    ],
)
def test_all_experts_survive(pieces, tmp_path, strategy, quant, loud, times):
    assert cosines(pieces[strategy], tmp_path, quant, loud, times).min() > 0.999


@pytest.mark.parametrize(
    ("quant", "loud"), [("int8-tensor", GATES), ("int8-tensor", DOWN), ("int8", DOWN)]
)
def test_a_scale_that_many_experts_share_loses_the_quiet_ones(pieces, tmp_path, quant, loud):
    """Every output channel of a packed down bank has weights of all: its scale is the loudest's."""
    found = cosines(pieces["packed"], tmp_path, quant, loud)
    assert found[0] > 0.999 and found[-1] < 0.9
    assert quant == "int8" or (np.diff(found) < 1e-3).all()  # the quieter, the worse
