"""The contract of the backends, and what Core ML's keeps of its compilations.

`TestBackendContract` runs for the executor everywhere, and for Core ML where it can run (a Mac).
"""

from functools import partial
import gc
import hashlib
from importlib.util import find_spec
from pathlib import Path
import shutil

from ane_book.bundle import cache
from ane_book.errors import InvalidInput, InvalidPackage
from ane_book.runtime.backends import CoreMLBackend, MILBackend, choose_backend
from mlprogram import machine
import mlprogram.coreml
import numpy as np
import pytest


def test_a_backend_is_chosen_by_name_and_machine():
    assert choose_backend("mil", "fp32").dtype == np.float32
    assert choose_backend(None, "fp32").name == "mil"
    assert choose_backend(None).name == ("coreml" if machine.CAN_PREDICT else "mil")
    for name, precision in (("gpu", "fp16"), ("coreml", "fp32"), ("mil", "int8")):
        with pytest.raises(InvalidInput):
            choose_backend(name, precision)


#: coremltools leaves the temporary folders of its models to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@pytest.fixture(scope="module")
def accumulator(tmp_path_factory) -> Path:
    """A package whose functions `decode` and `prefill` add (T, 32) rows to a shared state."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    folder = tmp_path_factory.mktemp("accumulator")
    functions = ct.utils.MultiFunctionDescriptor()
    for name, tokens in (("decode", 1), ("prefill", 4)):

        @mb.program(
            input_specs=[
                mb.TensorSpec((tokens, 32), dtype=types.fp16),
                mb.StateTensorSpec((1, 32), dtype=types.fp16),
            ],
            opset_version=ct.target.iOS18,
        )
        def program(x, total):
            rows = mb.reduce_sum(x=x, axes=[0], keep_dims=True)
            new = mb.add(x=mb.read_state(input=total), y=rows)
            new = mb.coreml_update_state(state=total, value=new)
            return mb.mul(x=new, y=np.float16(2), name="doubled")

        model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
        model.save(str(folder / f"{name}.mlpackage"))
        functions.add_function(str(folder / f"{name}.mlpackage"), "main", name)
    functions.default_function_name = "decode"
    ct.utils.save_multifunction(functions, str(folder / "both.mlpackage"))
    del model, program
    gc.collect()
    return folder / "both.mlpackage"


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.fixture
def in_core_mls_place(monkeypatch):
    """The executor behind coremltools' binding, and a machine that says it has Core ML."""
    monkeypatch.setattr(machine, "CAN_PREDICT", True)
    with mlprogram.coreml.enable():
        yield


CORE_AI = pytest.mark.skipif(find_spec("coreai") is None, reason="coreai-core is not installed")
BACKENDS = [
    pytest.param(lambda: MILBackend("fp16"), id="mil-fp16"),
    pytest.param(lambda: MILBackend("fp32"), id="mil-fp32"),
    pytest.param(
        CoreMLBackend,
        id="coreml",
        marks=pytest.mark.skipif(not machine.CAN_PREDICT, reason=machine.CAN_PREDICT_REASON),
    ),
    pytest.param(None, id="coreml-by-executor"),
    *(
        pytest.param(partial(choose_backend, "coreai", kind), id=f"coreai-{kind}", marks=CORE_AI)
        for kind in ("fp16", "fp32")
    ),
]


@pytest.fixture
def make_backend(request, monkeypatch, tmp_path):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    if request.param is None:
        request.getfixturevalue("in_core_mls_place")
    return request.param or CoreMLBackend


@pytest.mark.parametrize("make_backend", BACKENDS, indirect=True)
class TestBackendContract:
    """What a session relies on, held against every backend."""

    def test_functions_share_one_state(self, make_backend, accumulator):
        backend = make_backend()
        decode, prefill = (backend.load(accumulator, name) for name in ("decode", "prefill"))
        for maker in (decode, prefill):  # whichever function makes the state, both may use it
            state = maker.make_state()
            four = np.full((4, 32), 0.5, backend.dtype)
            one = np.ones((1, 32), backend.dtype)
            assert np.all(prefill.predict({"x": four}, state)["doubled"] == 4)
            assert np.all(decode.predict({"x": one}, state)["doubled"] == 6)
            assert np.all(prefill.predict({"x": four}, state)["doubled"] == 10)
            assert np.all(decode.predict({"x": one}, decode.make_state())["doubled"] == 2)

    def test_a_state_goes_from_one_to_another_by_its_values(self, make_backend, accumulator):
        """As a cache does from tier to tier."""
        backend = make_backend()
        decode, prefill = (backend.load(accumulator, name) for name in ("decode", "prefill"))
        one, state, other = np.ones((1, 32), backend.dtype), decode.make_state(), None
        decode.predict({"x": one}, state)
        total, other = state.read_state("total"), prefill.make_state()
        assert total.shape == (1, 32) and np.all(total == 1)
        other.write_state("total", np.asarray(total + 2, backend.dtype))
        assert np.all(prefill.predict({"x": np.tile(one, (4, 1))}, other)["doubled"] == 14)
        assert np.all(state.read_state("total") == 1)

    def test_declares_its_types(self, make_backend, accumulator):
        prefill = make_backend().load(accumulator, "prefill")
        shapes = [
            {name: type_.shape for name, type_ in part.items()}
            for part in (prefill.inputs, prefill.states, prefill.outputs)
        ]
        assert shapes == [{"x": (4, 32)}, {"total": (1, 32)}, {"doubled": (1, 32)}]

    def test_leaves_inputs_and_files_alone(self, make_backend, accumulator):
        before, backend = digest(accumulator), make_backend()
        decode = backend.load(accumulator, "decode")
        x = np.ones((1, 32), backend.dtype)
        inputs = {"x": x}
        decode.predict(inputs, decode.make_state())
        assert inputs["x"] is x and np.all(x == 1)
        assert digest(accumulator) == before

    def test_a_function_or_package_that_is_not_there_is_refused(self, make_backend, accumulator):
        with pytest.raises(InvalidInput, match=r"no function 'verify'; it has: .*decode"):
            make_backend().load(accumulator, "verify")
        with pytest.raises(InvalidPackage, match="nothing"):
            make_backend().load(accumulator.with_name("nothing.mlpackage"), "decode")


class TestKept:
    """What `CoreMLBackend` compiles stays, and is compiled once. The executor is Core ML's place
    in coremltools; what counts is coremltools' own compiler call."""

    @pytest.fixture
    def compiled(self, in_core_mls_place, monkeypatch, tmp_path) -> list[str]:
        """The packages that Core ML was asked to compile, by name."""
        from coremltools import libcoremlpython

        asked, real = [], libcoremlpython._MLModelProxy.compileModel

        def compile_model(path: str) -> str:
            asked.append(Path(path).name)
            return real(path)

        proxy = libcoremlpython._MLModelProxy
        monkeypatch.setattr(proxy, "compileModel", staticmethod(compile_model))
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(machine, "macos_build", lambda: "24A335")
        return asked

    def doubled(self, package: Path) -> float:
        decode = CoreMLBackend().load(package, "decode")
        return decode.predict({"x": np.ones((1, 32))}, decode.make_state())["doubled"].max()

    def test_a_later_process_loads_what_an_earlier_one_compiled(self, compiled, accumulator):
        assert [self.doubled(accumulator) for _ in range(2)] == [2, 2]
        assert compiled == ["both.mlpackage"]
        (entry,) = cache.entries()
        assert entry.path.parent == cache.compiled() and entry.recipe == {"compiled": True}
        assert {path.name for path in entry.path.iterdir()} == {"both.mlmodelc", "manifest.json"}

    def test_another_content_macos_or_coremltools_is_compiled_anew(
        self, compiled, accumulator, tmp_path, monkeypatch
    ):
        self.doubled(accumulator)
        copy = tmp_path / "both.mlpackage"
        shutil.copytree(accumulator, copy)
        self.doubled(copy)
        assert len(compiled) == 1, "the same content at another place"
        (copy / "Manifest.json").write_bytes((copy / "Manifest.json").read_bytes() + b"\n")
        self.doubled(copy)
        assert len(compiled) == 2
        monkeypatch.setattr(machine, "macos_build", lambda: "24B83")
        self.doubled(copy)
        monkeypatch.setattr("importlib.metadata.version", lambda name: "9.1")
        self.doubled(copy)
        assert len(compiled) == 4 == len(cache.entries())

    def test_what_is_half_is_compiled_anew(self, compiled, accumulator):
        self.doubled(accumulator)
        (entry,) = cache.entries()
        weights = next(entry.path.rglob("weight.bin"), None) or next(entry.path.rglob("*.mil"))
        weights.write_bytes(weights.read_bytes()[:-1])
        assert self.doubled(accumulator) == 2 and len(compiled) == 2
        (entry.path / "manifest.json").unlink()
        assert self.doubled(accumulator) == 2 and len(compiled) == 3

    def test_what_cannot_be_compiled_leaves_nothing(self, compiled, accumulator, monkeypatch):
        from coremltools import libcoremlpython

        def broken(path: str) -> str:
            raise RuntimeError("Error compiling model: no space for it")

        proxy = libcoremlpython._MLModelProxy
        monkeypatch.setattr(proxy, "compileModel", staticmethod(broken))
        with pytest.raises(InvalidPackage, match="both.mlpackage: Core ML cannot compile it: .*no"):
            CoreMLBackend().load(accumulator, "decode")
        assert cache.entries() == [] and list(cache.compiled().iterdir()) == []

    @pytest.mark.parametrize("taken", ["", "compiled", "locks"])
    def test_a_cache_that_cannot_be_written_is_named(self, compiled, accumulator, tmp_path, taken):
        """A file stands where a folder would be made: root may write where others may not."""
        place = tmp_path / "cache" / taken
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
        with pytest.raises(OSError) as error:
            CoreMLBackend().load(accumulator, "decode")
        assert str(place) in error.value.filename and compiled == []
