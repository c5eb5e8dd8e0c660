"""The verdict on the device, and the contract of the backends.

`TestBackendContract` runs for the executor everywhere, and for Core ML where it can run (a Mac).
"""

import gc
import hashlib
from pathlib import Path
import subprocess
import sys

from ane_book import device
from ane_book.errors import BackendUnavailable, InvalidInput, InvalidPackage
from ane_book.runtime.backends import CoreMLBackend, MILBackend, choose_backend
import numpy as np
import pytest
import torch


class TestDevice:
    def test_verdict_has_a_reason(self):
        assert isinstance(device.CAN_PREDICT, bool)
        assert len(device.CAN_PREDICT_REASON) > 10
        checks = {check: (ok, detail) for check, ok, detail in device.describe()}
        assert checks["Core ML predictions"] == (device.CAN_PREDICT, device.CAN_PREDICT_REASON)
        assert checks["torch"] == (True, torch.__version__)
        assert all(detail for _, detail in checks.values())

    def test_verdict_needs_nothing_heavy(self):
        code = (
            "import sys; from ane_book import device; device.describe(); "
            "print({'torch', 'coremltools', 'numpy'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "set()\n", done.stderr

    @pytest.mark.skipif(device.CAN_PREDICT, reason="Core ML runs here")
    def test_core_ml_says_why_not(self):
        with pytest.raises(BackendUnavailable) as caught:
            CoreMLBackend()
        assert device.CAN_PREDICT_REASON in str(caught.value)

    def test_backend_is_chosen_by_name_and_machine(self):
        assert choose_backend("mil", "fp32").dtype == np.float32
        assert choose_backend(None, "fp32").name == "mil"
        assert choose_backend(None).name == ("coreml" if device.CAN_PREDICT else "mil")
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


BACKENDS = [
    pytest.param(lambda: MILBackend("fp16"), id="mil-fp16"),
    pytest.param(lambda: MILBackend("fp32"), id="mil-fp32"),
    pytest.param(
        CoreMLBackend,
        id="coreml",
        marks=pytest.mark.skipif(not device.CAN_PREDICT, reason=device.CAN_PREDICT_REASON),
    ),
]


@pytest.mark.parametrize("make_backend", BACKENDS)
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

    def test_unknown_function_is_refused(self, make_backend, accumulator):
        with pytest.raises(InvalidInput, match=r"no function 'verify'; it has: .*decode"):
            make_backend().load(accumulator, "verify")

    def test_missing_package_is_refused(self, make_backend, tmp_path):
        with pytest.raises(InvalidPackage, match="nothing"):
            make_backend().load(tmp_path / "nothing.mlpackage", "decode")
