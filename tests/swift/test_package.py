"""The Swift package's own tests, its compiler without a warning, and an app that adds it by URL."""

from pathlib import Path
import re
import shutil
import subprocess

from _anebook import PIPE
from _patience import HANGING
import pytest

pytest_plugins = ["_talker"]
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "swift"
README = (PACKAGE / "README.md").read_text()

needs_swift = pytest.mark.skipif(shutil.which("swift") is None, reason="no swift on PATH")


@needs_swift
def test_its_own_tests_pass_without_a_warning():
    command = ["swift", "test", "--build-path", ".build-tests"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * HANGING)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert "warning:" not in run.stdout + run.stderr


def test_it_has_no_dependencies_and_nothing_that_ends_or_changes_a_process():
    assert ".package(" not in (ROOT / "Package.swift").read_text()
    text = "\n".join(file.read_text() for file in (PACKAGE / "Sources").rglob("*.swift"))
    for word in ("@unchecked Sendable", "try!", "fatalError(", "umask("):
        assert word not in text, word


def listing(contains: str) -> str:
    """The listing of README that has these words."""
    (text,) = [text for text in re.findall(r"```swift\n(.*?)```", README, re.S) if contains in text]
    return text


@needs_swift
@pytest.mark.long
def test_an_app_adds_it_by_url_and_answers(tmp_path, talker):
    """README's two listings in a package of its own, with a clone of this checkout as the URL."""
    clone, app = tmp_path / "ane-book", tmp_path / "app"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    subprocess.run(["git", "tag", "0.2.7"], cwd=clone, check=True)
    manifest = listing(".package(url:").replace(
        "https://github.com/ane-book/ane-book", f"file://{clone}"
    )
    here = '.product(name: "AneBookExecutor", package: "ane-book"), '
    manifest = manifest.replace("dependencies: [.product", f"dependencies: [{here}.product")
    executor = ", ".join(f'"{word}"' for word in PIPE.split())
    program = listing("Session(").replace(
        "CoreMLPredictor()", f"ExecutorPredictor(command: [{executor}])"
    )
    program = f"import AneBookExecutor\n{program}"
    (app / "Sources" / "App").mkdir(parents=True)
    (app / "Package.swift").write_text(manifest)
    (app / "Sources" / "App" / "main.swift").write_text(program)
    # Nothing is remembered of another clone that had the same name and tag.
    own = [f"--{what}-path={tmp_path / what}" for what in ("cache", "security", "config")]
    subprocess.run(["swift", "build", *own], cwd=app, check=True, timeout=10 * HANGING)
    assert '"version" : "0.2.7"' in (app / "Package.resolved").read_text()
    run = subprocess.run(
        [app / ".build" / "debug" / "App", talker.path],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
