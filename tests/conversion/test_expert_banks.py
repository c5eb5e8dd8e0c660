"""Experts of different size side by side in int8: which of them survive, through the executor.

A scale is shared by a tensor or by an output channel. The output channels of a gate-and-up bank
belong each to one expert; those of a packed down bank to all of them, since experts lie along its
input channels there.
"""

from ane_book import MLProgram
from ane_book.conversion.quantize import find_scheme
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


@pytest.mark.parametrize("loud", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("strategy", ["dispatch", "packed"])
def test_half_precision_keeps_all(pieces, tmp_path, strategy, loud):
    assert cosines(pieces[strategy], tmp_path, "none", loud).min() > 0.9999


@pytest.mark.parametrize("loud", ["gate_up_proj", "down_proj"])
def test_one_scale_for_a_packed_bank_loses_the_quiet_experts(pieces, tmp_path, loud):
    found = cosines(pieces["packed"], tmp_path, "int8-tensor", loud)
    assert found[0] > 0.999  # the loudest, which the scale is made for
    assert found[-1] < 0.9 and (np.diff(found) < 1e-3).all()  # the quieter, the worse


def test_a_scale_for_each_channel_repairs_gates_and_ups(pieces, tmp_path):
    assert cosines(pieces["packed"], tmp_path, "int8", "gate_up_proj").min() > 0.999


def test_but_not_a_packed_down_bank(pieces, tmp_path):
    """Every output channel of it has weights of all experts: the scale is still the loudest's."""
    found = cosines(pieces["packed"], tmp_path, "int8", "down_proj")
    assert found[0] > 0.999 and found[-1] < 0.9


@pytest.mark.parametrize("quant", ["int8", "int8-tensor"])
@pytest.mark.parametrize("loud", ["gate_up_proj", "down_proj"])
def test_experts_by_themselves_have_scales_of_their_own(pieces, tmp_path, quant, loud):
    assert cosines(pieces["dispatch"], tmp_path, quant, loud).min() > 0.999


def test_an_experts_size_moved_into_its_gate_repairs_the_down_bank(pieces, tmp_path):
    assert cosines(pieces["packed"], tmp_path, "int8", "down_proj", SIZES).min() > 0.999
