"""coremltools' own tests, from the installed wheel, run with a plugin that stands for Core ML."""

from importlib.util import find_spec
import os
from pathlib import Path
import subprocess
import sys
import tempfile


def run_pytest(plugin: str, folder: Path, *options: str, **environment: str) -> int:
    """Run pytest in coremltools with a plugin that lies in a folder; returns its exit code.

    coremltools deletes its temporary packages when a process ends. With thousands of them that
    takes longer than the 10 s after which pytest-xdist kills its workers.
    """
    coremltools = Path(find_spec("coremltools").origin).resolve().parent  # pytest names it so, too
    folders = [str(folder), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | environment | {
        "INCLUDE_MIL_FP32_UNIT_TESTS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(coremltools)]
    command += ["-p", "no:cacheprovider", "-p", plugin, "-q", "-W", "ignore", "--no-summary"]
    with tempfile.TemporaryDirectory() as temporary:
        environment["TMPDIR"] = temporary
        done = subprocess.run([*command, *options], cwd=coremltools, env=environment, check=False)
    return done.returncode
