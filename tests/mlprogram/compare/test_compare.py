"""Where two programs part: the first op, by how much, and what can be compared with what."""

from functools import cache
from math import inf, log10

from _foreign import built
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.compare import diff
from mlprogram.errors import InvalidInput
from mlprogram.run import live as executor
import numpy as np
import pytest
import torch
from torch import nn

OPTIONS = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.up(x))
        h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
        return self.down(h)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network().eval()


@pytest.fixture(scope="module")
def converted(network):
    """`converted("FLOAT16")`: the network as an ML Program of that compute precision."""
    traced = torch.jit.trace(network, torch.zeros(2, 8))

    @cache
    def convert(precision: str) -> MLProgram:
        given = {"inputs": [ct.TensorType("x", (2, 8))], "outputs": [ct.TensorType("y")]}
        model = ct.convert(traced, compute_precision=ct.precision[precision], **given, **OPTIONS)
        return MLProgram.from_mlmodel(model)

    return convert


@cache
def chain(scale: float = 2.0, name: str = "y") -> MLProgram:
    """relu, mul by `scale`, add: the values h, s and the output."""

    @built(mb.TensorSpec((4,)))
    def program(x):
        h = mb.relu(x=x, name="h")
        s = mb.mul(x=h, y=np.array([1, 1, scale, 1], np.float32), name="s")
        return mb.add(x=s, y=h, name=name)

    return program


class TestPrograms:
    def test_the_first_op_that_parts(self):
        found = diff(chain(2.1), chain(2.0), {"x": [1, 2, 3, 4]})
        assert not found.equal and (found.compared, found.values) == (3, 3)
        first = found.first
        assert (first.name, first.op, first.shape) == ("s", "mul", (4,))
        assert first.worst == (2,) and first.elements == pytest.approx((6.3, 6.0))
        assert first.inputs == {"h": 0.0}
        assert first.error == pytest.approx(0.3 / 6)
        (output,) = found.outputs
        assert output.name == "y" and output.inputs == {"s": first.error, "h": 0.0}

    def test_the_text(self):
        text = str(diff(chain(2.1), chain(2.0), {"x": [1, 2, 3, 4]}))
        assert text.startswith("3 of 3 values compared; tolerance 1 %\n\nfirst apart: mul 's' (4,)")
        assert "  error     5 %\n  worst     6.3 at (2,), B has 6\n" in text
        assert "  reads     'h', exact\n" in text
        assert text.endswith("\n\noutputs apart: y")
        text = str(diff(chain(), chain(), {"x": [1, 2, 3, 4]}))
        assert "first apart" not in text and text.endswith("\n\noutputs equal within the tolerance")

    def test_a_tolerance_between_both(self):
        assert diff(chain(2.1), chain(2.0), {"x": [1, 2, 3, 4]}, tolerance=0.06).equal

    def test_one_program_in_both_precisions(self, converted):
        half = converted("FLOAT16")
        found = diff(half.plain(), half.plain("fp32"), {"x": X})
        assert found.equal and found.first is None and found.compared == found.values > 5
        steps = [step.operation.type for step in half.plan.main.steps]
        found = diff(half, half.plain("fp32"), {"x": X})
        assert found.equal and found.compared == found.values == len(steps)
        large = diff(half.plain(), half.plain("fp32"), {"x": 400 * X})
        assert large.first.op == "mul" and large.first.error == inf
        assert large.first.elements[0] == inf and large.first.elements[1] > 65_504
        assert "error     infinite" in str(large)

    def test_packages_of_both_precisions_match_by_name(self, converted):
        found = diff(converted("FLOAT16"), converted("FLOAT32"), {"x": X})
        assert found.equal and found.notes == []
        assert found.compared >= found.values - 2  # the casts at both ends have their own names

    def test_states_start_at_zero(self):
        @built(mb.TensorSpec((4,), types.fp16), mb.StateTensorSpec((4,), types.fp16))
        def running(x, memory):
            after = mb.add(x=mb.read_state(input=memory), y=x, name="sum")
            mb.coreml_update_state(state=memory, value=after)
            return mb.mul(x=after, y=after, name="y")

        for _ in range(2):
            found = diff(running, lambda inputs: {"y": inputs["x"] ** 2}, {"x": np.arange(4)})
            assert found.equal

    def test_a_classifier_by_its_probabilities(self):
        def classifier(scale):
            labels = ct.ClassifierConfig(["a", "b", "c"])
            given = {"inputs": [ct.TensorType("x", (1, 3))], "classifier_config": labels}

            @built(mb.TensorSpec((1, 3)), **given)
            def program(x):
                return mb.softmax(x=mb.mul(x=x, y=np.float32(scale)), axis=-1, name="p")

            return program

        found = diff(classifier(2), classifier(3), {"x": [[1, 2, 3]]})
        assert not found.equal and found.first.op == "mul"
        assert [gap.op for gap in found.outputs] == ["softmax"]

    def test_it_holds_no_values(self, converted, watched):
        most = watched(executor, "as_array")
        half = converted("FLOAT16")
        diff(half.plain(), half.plain("fp32"), {"x": X})
        assert 2 <= most() <= 4  # of 20: two at hand, two that are just being made


class TestOtherSides:
    def test_a_torch_module(self, converted, network):
        found = diff(converted("FLOAT32"), network, {"x": X}, tolerance=1e-5)
        assert found.equal and [gap.shape for gap in found.outputs] == [(2, 3)]
        assert found.compared == 1 and "outputs by their order: y and output_0" in found.notes
        assert diff(network, converted("FLOAT32"), {"x": X}, tolerance=1e-5).equal
        assert not diff(converted("FLOAT32"), Shifted().eval(), {"x": X}).equal

    def test_outputs_alone_are_said_to_be_compared(self, converted, network):
        """Of a module nothing before its outputs is known, and their end may hide what is wrong."""
        found = diff(converted("FLOAT32"), network, {"x": X})
        assert any("outputs alone are compared" in note for note in found.notes)
        assert str(found).endswith("within the tolerance; nothing before them was compared")
        half = converted("FLOAT16")
        assert "alone" not in str(diff(half.plain(), half.plain("fp32"), {"x": X}))

    def test_a_module_in_training_mode(self, converted):
        with pytest.raises(InvalidInput, match=r"call its eval\(\)"):
            diff(converted("FLOAT32"), Network().train(), {"x": X})

    def test_a_function_that_names_what_is_inside(self):
        def reference(inputs):
            h = np.maximum(inputs["x"], 0)
            return {"y": h * [2, 2, 3, 2], "h": h}  # in another order

        found = diff(chain(2.1), reference, {"x": np.array([1, -2, 3, 4])}, tolerance=0.001)
        assert found.compared == 2 and found.first.name == "y"
        assert found.first.worst == (2,)

    def test_outputs_that_nobody_can_match(self):
        with pytest.raises(InvalidInput, match="A gives y and B a, b: give outputs"):
            diff(chain(), {"a": X, "b": X}, {"x": np.ones(4)})

    def test_outputs_of_other_names(self):
        found = diff(chain(name="y"), chain(name="z"), {"x": np.ones(4)})
        assert found.equal and found.compared == 3
        assert found.notes == ["outputs by their order: y and z"]
        found = diff({"a": X, "b": X}, {"b": X}, {})
        assert found.equal and found.notes == ["B has no output a"]


class Shifted(Network):
    def forward(self, x):
        return super().forward(x) + 1


class TestStatistics:
    def one(self, a, b, **options):
        (gap,) = diff({"y": np.asarray(a)}, {"y": np.asarray(b)}, {}, **options).outputs
        return gap

    def test_of_two_arrays(self):
        a, b = np.array([[1.0, 2.5], [0.0, 3.0]]), np.array([[1.0, 2.0], [0.0, 4.0]])
        gap = self.one(a, b)
        assert (gap.error, gap.max_abs, gap.max_relative) == (0.25, 1.0, 0.25)
        assert gap.worst == (1, 1) and gap.elements == (3.0, 4.0)
        assert gap.cosine == pytest.approx((1 + 5 + 12) / np.sqrt((1 + 6.25 + 9) * 21))
        assert gap.snr == pytest.approx(10 * log10(21 / 1.25))
        assert gap.psnr == pytest.approx(10 * log10(16 / (1.25 / 4)))

    def test_equal_ones(self):
        for value in (np.ones(3), np.zeros(3), np.zeros((0, 3)), np.array([inf, -inf, np.nan])):
            assert self.one(value, value).error == 0
        gap = self.one(np.ones(3), np.ones(3))
        assert (gap.snr, gap.psnr) == (inf, inf) and gap.cosine == pytest.approx(1)

    @pytest.mark.parametrize("odd", [np.nan, inf, -inf])
    def test_one_side_without_a_number(self, odd):
        gap = self.one([1.0, odd], [1.0, 2.0])
        assert gap.error == inf and gap.worst == (1,)
        assert self.one([1.0, 2.0], [1.0, odd]).error == inf

    def test_a_reference_of_zeros(self):
        assert self.one([0.0, 1e-9], [0.0, 0.0]).error == 1

    def test_shapes(self):
        assert self.one(np.ones((1, 3, 1)), np.ones((3, 1, 1))).error == 0
        assert self.one(np.ones((1, 3)), np.ones((1, 4))).error == inf
        text = str(diff({"y": np.ones((1, 3))}, {"y": np.ones(4)}, {}))
        assert "shape (1, 3), B has (4,)" in text
