"""Packages of others by both runtimes: what the tests of foreign packages run, by Core AI too."""

import json
import os
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
#: Where the packages are: as converters of others write them, and networks of `transformers`.
FOREIGN = (
    *(HERE.parent / name / "foreign" for name in ("mlprogram", "conversion")),
    HERE / "test_networks.py",
)
EXACT = 1e-4  # of the largest number, in single precision: what is further off is wrong


def run(*options: str, paths=FOREIGN) -> list[dict]:
    """A row of each function of each package in each precision (`wild_plugin.py`), but for packages
    that a test has decompressed to compare with ("plain").

    options: of pytest. Raises RuntimeError where its tests did not all pass.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"ANE_BOOK_WILD": str(file), "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-p", "wild_plugin", "-p", "no:cacheprovider"]
        command += ["-q", "--no-summary", *options, *map(str, paths)]
        done = subprocess.run(command, cwd=HERE.parents[1], env=environment, check=False)
        if done.returncode:
            raise RuntimeError(f"not all tests passed (pytest: {done.returncode}); see above why")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if row["package"] != "plain"]
