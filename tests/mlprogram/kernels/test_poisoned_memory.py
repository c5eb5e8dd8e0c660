"""Tests of compiled code, run again where memory that is free or new holds numbers that are none.

A value that is read after its memory was freed, or before anybody wrote to it, mostly looks right:
it is what lay there before. Here glibc fills memory when it is freed, or when it is given out; and
the compiler's sanitizer does both, and looks at every access of the kernels.
"""

import os
from pathlib import Path
import platform
import shutil
import subprocess
import sys

from mlprogram.kernels import native
import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not native.available(), reason=native.status()[1]),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library has its memory"),
]

ROOT = Path(__file__).parents[3]
FILES = {
    "kernels": [
        f"tests/mlprogram/kernels/test_{name}.py"
        for name in ("native", "forms", "fuse", "hostile_kernels", "table")
    ],
    "stretches": sorted(map(str, ROOT.glob("tests/mlprogram/run/test_stretch*.py"))),
    "open sizes": ["tests/mlprogram/run/test_open_sizes.py"],
    "conformance": ["tests/conformance/test_sample.py"],
}
#: The process of a model's tokenizer is given less memory than the sanitizer takes.
WITHOUT_TOKENIZER = ["-k", "random or not (test_stretches or without_a_compiler)"]

#: What glibc fills freed memory with, and new memory with its complement: 255 is NaN in either
#: precision, 254 is NaN in half and -1.7e38 in single.
PERTURBED = {"freed": "255", "new": "1"}
FILLED = 1 << 20  # bytes of a piece of memory that the sanitizer fills
SANITIZER = {
    "detect_leaks": 0, "max_malloc_fill_size": FILLED, "malloc_fill_byte": 255,
    "max_free_fill_size": FILLED, "free_fill_byte": 255,
}  # fmt: skip

READ = """
import ctypes, math, torch
x = torch.ones(400)
there = (ctypes.c_float * 400).from_address(x.data_ptr())
del x
print(sum(map(math.isnan, there)) > 350, bool((~(torch.empty(500).abs() < 1e38)).all()))
"""
TOO_FAR = """
from mlprogram.kernels import native
import torch
native.kernel("activation")(torch.ones(40), torch.empty(40), 99, 0, 0, 1)
"""


@pytest.fixture(scope="module", params=[*PERTURBED, "sanitized"])
def poisoned(request, tmp_path_factory):
    """The name of a way to fill memory, and `run(*arguments)` of Python where it is so."""
    more = sanitized(tmp_path_factory.mktemp("sanitized")) if request.param == "sanitized" else {
        "MALLOC_PERTURB_": PERTURBED[request.param],
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # which is given out as it is
    }  # fmt: skip

    def run(*arguments: object) -> subprocess.CompletedProcess:
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, *map(str, arguments)]
        environment = os.environ | paths | more
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return request.param, run


def sanitized(folder: Path) -> dict[str, str]:
    """Kernels that are compiled with the sanitizer, in a process that has it from the start."""
    compiler, libraries = shutil.which("gcc"), ["libasan.so", "libstdc++.so"]  # torch throws
    for i, name in enumerate(libraries if compiler else []):
        command = [compiler, f"-print-file-name={name}"]
        libraries[i] = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("no gcc, or none with libasan")
    wrapper = folder / "gcc"
    call = f'exec env -u LD_PRELOAD {compiler} "$@" -fsanitize=address -O1'
    wrapper.write_text(f"#!/bin/sh\n{call}\n")
    wrapper.chmod(0o700)
    return {
        "CC": str(wrapper), "MLPROGRAM_CACHE": str(folder), "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": ":".join(f"{key}={value}" for key, value in SANITIZER.items()),
    }  # fmt: skip


def test_what_is_read_too_late_or_too_early_is_seen(poisoned):
    how, run = poisoned
    assert run("-c", READ).stdout.split() == [str(how != "new"), str(how != "freed")]
    assert how != "sanitized" or "AddressSanitizer" in run("-c", TOO_FAR).stderr


@pytest.mark.parametrize("files", FILES)
def test_tests_pass_all_the_same(poisoned, files):
    how, run = poisoned
    if (how, files) == ("sanitized", "conformance"):
        pytest.skip("it starts processes that take minutes")
    options = ["-q", "-x", "--capture=sys", "-p", "no:cacheprovider"]  # the sanitizer is heard
    options += WITHOUT_TOKENIZER if how == "sanitized" else []
    done = run("-m", "pytest", *options, *FILES[files])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "cannot compile them" not in done.stdout
