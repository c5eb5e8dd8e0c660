"""What is built of this checkout in Swift, for tests that hold it to Python."""

import os
from pathlib import Path
import shlex
import shutil
import subprocess

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def anebook() -> list[str]:
    """The command line of `anebook`: ANE_BOOK_SWIFT_BINARY, or built here where a `swift` is."""
    if command := os.environ.get("ANE_BOOK_SWIFT_BINARY"):
        return shlex.split(command)
    if shutil.which("swift") is None:
        pytest.skip("no swift on PATH")
    subprocess.run(["swift", "build", "-c", "release"], cwd=ROOT, check=True)
    return [str(ROOT / ".build" / "release" / "anebook")]


@pytest.fixture(scope="session")
def test_host(anebook) -> list[str]:
    """The command line of AneBookTestHost, which lies beside `anebook`."""
    return [*anebook[:-1], str(Path(anebook[-1]).with_name("AneBookTestHost"))]
