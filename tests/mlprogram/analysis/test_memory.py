"""Memory as it is predicted from a program, held to what torch really allocates."""

from functools import cache
import gc
from pathlib import Path
import tracemalloc

from _foreign import built
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types
from mlprogram import MLProgram
from mlprogram.analysis.memory import peak_resident, predict
from mlprogram.kernels import compiled, native
from mlprogram.run import live
import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = {"without": ["runner"]}  # no memory of stretches
WEIGHT = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float16)


def half(*shape) -> mb.TensorSpec:
    return mb.TensorSpec(shape, dtype=types.fp16)


class Allocated(TorchDispatchMode):
    """The most bytes that lived at once of torch's tensors and of numpy's arrays."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.living, self.peak, run_steps = {}, 0, compiled.run_steps

        def looked(*arguments):  # a stretch has all of its memory by then
            self.look()
            return run_steps(*arguments)

        monkeypatch.setattr(compiled, "run_steps", looked)

    def __enter__(self):
        tracemalloc.start()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        tracemalloc.stop()

    def look(self) -> None:
        arrays = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
        )
        self.living = {k: v for k, v in self.living.items() if not v[0].expired()}
        tensors = sum(size for _, size in self.living.values())
        self.peak = max(self.peak, tensors + sum(trace.size for trace in arrays.traces))

    def __torch_dispatch__(self, op, _, arguments=(), options=None):
        result = op(*arguments, **(options or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().resizable():  # torch's own
                memory = leaf.untyped_storage()
                self.living[memory.data_ptr()] = (StorageWeakRef(memory), memory.nbytes())
        self.look()
        return result


@cache
def attending() -> MLProgram:
    @built(mb.TensorSpec((1, 8, 128, 64)), mb.TensorSpec((1, 8, 128, 64)))
    def running(q, k):
        scores = mb.matmul(x=q, y=k, transpose_y=True)
        weights = mb.softmax(x=mb.mul(x=scores, y=np.float32(0.125)), axis=-1)
        mixed = mb.transpose(x=mb.matmul(x=weights, y=k), perm=[0, 2, 1, 3])
        return mb.tanh(x=mb.reshape(x=mixed, shape=[1, 128, 512]))

    return running


@cache
def weighted() -> MLProgram:
    random = np.random.default_rng(0)
    scale = random.standard_normal(4_000).astype(np.float16)
    matrix = random.standard_normal((32, 4_000, 1, 1)).astype(np.float16)

    @built(half(1, 4_000, 1, 1))
    def running(x):
        x = mb.layer_norm(x=x, axes=[1], gamma=scale, beta=scale + np.float16(1))
        return mb.conv(x=mb.relu(x=x), weight=matrix)

    return running


class TestValues:
    def test_each_lives_from_its_op_to_its_last_use(self):
        @built(half(100))
        def running(x):
            a = mb.relu(x=x)  # x, a
            b = mb.exp(x=a)  # x, a, b
            c = mb.add(x=a, y=b)  # x, a, b, c: the most
            return mb.exp(x=c)  # x, c, y

        for precision, size in (("fp16", 200), ("fp32", 400)):
            assert MLProgram(running.package, "main", precision, **STEPS).memory.values == 4 * size

    def test_views_take_nothing(self):
        @built(half(100))
        def running(x):
            a = mb.relu(x=x)
            b = mb.transpose(x=mb.reshape(x=a, shape=[10, 10]), perm=[1, 0])
            return mb.exp(x=b)

        assert MLProgram(running.package, **STEPS).memory.values == 3 * 200

    def test_a_nested_block_comes_on_top(self):
        @built(half(100))
        def running(x):
            def double():
                a = mb.exp(x=x)
                return mb.add(x=a, y=mb.sin(x=a))  # three values at once

            big = mb.greater(x=mb.reduce_max(x=x), y=np.float16(0))
            return mb.cond(pred=big, _true_fn=double, _false_fn=lambda: mb.relu(x=x))

        assert running.memory.values == 5 * 200 + 1  # x, three inside, the result, and `big`

    def test_shapes_that_only_a_run_tells(self):
        size = ct.RangeDim(1, 100, default=8)
        inputs = [ct.TensorType("x", ct.Shape((1, size)))]

        @built(mb.TensorSpec((1, get_new_symbol())), inputs=inputs)
        def running(x):
            return mb.exp(x=mb.sin(x=x, name="s"), name="y")

        assert running.memory.values is None
        function = running.package.functions["main"]
        shapes = {"x": (1, 50), "s": (1, 50), "y": (1, 50)}
        assert predict(function, shapes=shapes) == (0, 3 * 200)

    @pytest.mark.parametrize("attention", [(), ("attention",)])
    @pytest.mark.parametrize("runner", [(), ("runner",)])
    def test_against_what_is_allocated(self, attention, runner, monkeypatch):
        """A group of ops has no values inside. In C the arena of a stretch stays to its end."""

        running = MLProgram(attending().package, without=attention + runner)
        running.compiled  # noqa: B018  (constants are laid out now, not in the call)
        tensors = live.tensors_of(running, running._arrays(running.random_inputs()))
        with torch.inference_mode(), Allocated(monkeypatch) as allocated:
            running.compiled.run([tensor.clone() for tensor in tensors], {})
        assert allocated.peak == pytest.approx(running.memory.values, rel=0.05)


class TestWeightsAndStates:
    def test_a_weight_that_is_read_as_stored_is_only_mapped(self):
        @built(half(1, 64))
        def running(x):
            return mb.linear(x=x, weight=WEIGHT)

        (file,) = running.package.path.glob("*.bin")
        mapped = file.stat().st_size
        plain, full = running.plain("fp16").memory, running.plain("fp32").memory
        assert plain.mapped == full.mapped == mapped > WEIGHT.nbytes
        assert plain.laid_out < 2_000  # the bias that coremltools adds
        assert 2 * WEIGHT.nbytes <= full.laid_out < 2 * WEIGHT.nbytes + 2_000
        assert full.total == full.mapped + full.laid_out + full.values

    @pytest.mark.parametrize("precision", ["fp16", "fp32"])
    @pytest.mark.parametrize("compiler", [True, False])
    @pytest.mark.parametrize("optimize", [True, False])
    def test_what_is_laid_out_is_what_torch_holds(self, precision, compiler, optimize, monkeypatch):
        """By closures, partial functions, bound methods and records alike."""
        monkeypatch.setattr(native, "available", lambda: compiler)
        running = MLProgram(weighted().package, precision=precision, optimize=optimize)
        with Allocated(monkeypatch) as allocated:
            running.compiled  # noqa: B018  (everything is laid out now)
        gc.collect()
        living = {
            at: size for at, (memory, size) in allocated.living.items() if not memory.expired()
        }
        (blob,) = running.package._blobs.values()
        file = np.frombuffer(blob._map, np.uint8)
        mapped = range(file.ctypes.data, file.ctypes.data + file.nbytes)
        held = sum(size for at, size in living.items() if at not in mapped)
        assert running.memory.laid_out == held
        assert held > 0 or precision == "fp16"

    def test_a_state_written_in_place_is_there_once(self):
        @built(half(1, 4), mb.StateTensorSpec((100, 4), dtype=types.fp16))
        def running(row, memory):
            before = mb.read_state(input=memory)
            after = mb.slice_update(x=before, update=row, begin=[0, 0], end=[1, 4])
            mb.coreml_update_state(state=memory, value=after)
            return mb.exp(x=row)

        memory = running.memory
        assert memory.states == sum(t.nbytes for t in running.make_state().tensors.values()) == 800
        assert memory.values == 8 + 8
        assert MLProgram(running.package, precision="fp32").memory.states == 1600


def test_the_most_that_this_process_had():
    """As the system has it, where it says so elsewhere too."""
    block = np.ones(100_000_000, np.uint8)
    found = peak_resident()
    assert found > block.nbytes
    status = Path("/proc/self/status")
    if status.exists():
        most = status.read_text().split("VmHWM:")[1].split()[0]  # kB
        assert found == pytest.approx(1024 * int(most), rel=0.02)
