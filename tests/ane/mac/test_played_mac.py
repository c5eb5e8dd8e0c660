"""The commands whole, as on a Mac, of one package. All but what is played is what a Mac runs."""

import json
from pathlib import Path
import shutil
import sys

from _nine_ops import nine_ops
from _played_mac import played
from mlprogram.ane.mac import child
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has its own")


@pytest.fixture
def mac(tmp_path, monkeypatch):
    """`mac(mode, "-m", "mlprogram", ...)` -> the finished command."""
    return played(tmp_path, monkeypatch)


def command(*arguments) -> tuple:
    return "-m", "mlprogram", *arguments


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return nine_ops(tmp_path_factory.mktemp("as-a-mac") / "graph.mlpackage")


def test_what_a_compiler_says_is_printed(mac, package):
    done = mac("refuse", *command("residency", package))
    assert done.returncode == 1, done.stderr
    verdict, said, entry = done.stdout.splitlines()
    assert "refused" in verdict and said.startswith("  compiler: E5RT: ANECCompile() FAILED")
    assert verdict.endswith("; failed to compile for the engine: CompilationFailure")
    assert entry.startswith("    compiler-failed: Find the part that it refuses")


def test_a_plan_stands_beside_the_prediction(mac, package):
    done = mac("well", *command("place", package, "--json"))
    assert done.returncode == 0, done.stderr
    actual = json.loads(done.stdout)["actual"]
    assert actual["measured"] and set(actual["devices"].values()) == {"ANE"}


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps here")
def test_memory_is_asked_of_ps_where_there_is_no_proc(monkeypatch):
    here = child.resident_bytes()
    monkeypatch.setattr(child, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    assert child.resident_bytes() == pytest.approx(here, rel=0.5)
