"""The Swift command, where somebody has built it: ANE_BOOK_SWIFT_BINARY, or `swift` on the PATH."""

import os
from pathlib import Path
import shlex
import shutil
import subprocess

import pytest

PACKAGE = Path(__file__).parents[2] / "swift"


@pytest.fixture(scope="session")
def anebook() -> list[str]:
    """The words that start the command `anebook`."""
    if binary := os.environ.get("ANE_BOOK_SWIFT_BINARY"):
        return shlex.split(binary)
    if not shutil.which("swift"):
        pytest.skip("no Swift here: set ANE_BOOK_SWIFT_BINARY to a built anebook")
    build = ["swift", "build", "-c", "release", "--package-path", str(PACKAGE)]
    subprocess.run(build, check=True)
    folder = subprocess.run([*build, "--show-bin-path"], check=True, capture_output=True, text=True)
    return [str(Path(folder.stdout.strip()) / "anebook")]
