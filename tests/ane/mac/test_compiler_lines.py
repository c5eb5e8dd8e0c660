"""The lines of the engine's compiler, as people reported them."""

from mlprogram.ane.mac.compiler import Failure, read_failures
import pytest

#: From apple/coremltools#2247, its paths cut.
IN_LOADING = """\
E5RT: MILCompilerForANE error: failed to compile ANE model. Error=_ANECompiler : ANECCompile() \
FAILED (11)
exception=ANECF error: failed to load ANE model file:///x/model.mil Error=ANECCompile(/y/z/) \
FAILED: err=(
    CompilationFailure
)
Error plan build: -1.
"""
COMPILE, LOAD = "compile for the engine", "load for the engine"


@pytest.mark.parametrize(
    "text, faults",
    [
        (
            IN_LOADING,
            [
                Failure(COMPILE, 11),
                Failure(LOAD, None, ("CompilationFailure",)),
                Failure("build the plan", -1),
            ],
        ),
        ("_ANECompiler : ANECCompile() FAILED.", [Failure(COMPILE)]),
        (
            "ANECCompile(/v/layer-0.mil) FAILED: err=(InvalidMILProgram)",
            [Failure(COMPILE, None, ("InvalidMILProgram",))],
        ),
        (
            "Failed to build the model execution plan using a model architecture file "
            "'/x/model.mil' with error code: -14.",
            [Failure("build the plan", -14)],
        ),
        ("ANECCompile() FAILED: err=()", [Failure(COMPILE)]),
        ("ANECCompile() FAILED\nANECCompile() FAILED", [Failure(COMPILE)]),
        ("a model was loaded", []),
        ("", []),
    ],
)
def test_what_failed_with_which_status_and_why(text, faults):
    assert read_failures(text) == faults


def test_a_fault_is_a_clause():
    found = Failure(COMPILE, 11, ("A", "B")).line()
    assert found == "failed to compile for the engine: A, B (status 11)"
    assert Failure(LOAD).line() == "failed to load for the engine"
