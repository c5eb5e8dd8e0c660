"""The command `anebook`, built from swift/, for tests that hold it to Python."""

import os
from pathlib import Path
import shlex
import shutil
import subprocess

import pytest

SWIFT = Path(__file__).parents[2] / "swift"


@pytest.fixture(scope="session")
def anebook() -> list[str]:
    """The command line of `anebook`: from ANE_BOOK_SWIFT_BINARY, or built here where a `swift` is."""
    if command := os.environ.get("ANE_BOOK_SWIFT_BINARY"):
        return shlex.split(command)
    if shutil.which("swift") is None:
        pytest.skip("no swift on PATH")
    subprocess.run(["swift", "build", "-c", "release"], cwd=SWIFT, check=True)
    return [str(SWIFT / ".build" / "release" / "anebook")]
