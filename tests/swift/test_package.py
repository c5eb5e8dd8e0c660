"""The Swift package's own tests, and its compiler without a warning."""

from pathlib import Path
import shutil
import subprocess

from _patience import HANGING
import pytest

PACKAGE = Path(__file__).parents[2] / "swift"


@pytest.mark.skipif(shutil.which("swift") is None, reason="no swift on PATH")
def test_its_own_tests_pass_without_a_warning():
    command = ["swift", "test", "--build-path", ".build-tests"]
    run = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=10 * HANGING)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert "warning:" not in run.stdout + run.stderr


def test_it_has_no_dependencies_and_nothing_that_ends_or_changes_a_process():
    assert ".package(" not in (PACKAGE / "Package.swift").read_text()
    text = "\n".join(file.read_text() for file in (PACKAGE / "Sources").rglob("*.swift"))
    for word in ("@unchecked Sendable", "try!", "fatalError(", "umask("):
        assert word not in text, word
