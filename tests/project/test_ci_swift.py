"""`.ci/swift`, on the folder that a whole run leaves: what it prints, and for whom it waits.

The run that fills the folder takes minutes and the network; here the folder has the files by which
the script knows a system of either kind of processor.
"""

import fcntl
import os
from pathlib import Path
import shutil
import subprocess

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "swift"
KINDS = {
    "x86_64-linux-gnu": "lib64/ld-linux-x86-64.so.2",
    "aarch64-linux-gnu": "lib/ld-linux-aarch64.so.1",
}

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("apt-get") is None, reason="needs root on a Debian"
)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def made(tmp_path, kind) -> Path:
    """A folder as a whole run leaves it, as far as the script looks at it."""
    root = tmp_path / "swift"
    for name in (".ready", KINDS[kind], f"usr/lib/{kind}/libc.so.6"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def begun(root: Path) -> subprocess.Popen[str]:
    env = os.environ | {"ANE_BOOK_SWIFT": str(root)}
    return subprocess.Popen(
        [SCRIPT], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_one_line_for_people_and_one_for_path(made, kind):
    out, err = begun(made).communicate(timeout=60)
    assert out == f"{made}/on-path\n"
    assert err == f"swift was there already: {made}, for {kind}\n"
    command = (made / "on-path/swift").read_text()
    assert f"--dynamic-linker={made}/{KINDS[kind]} " in command
    assert f"libraries={made}/usr/lib/{kind}:" in command


def test_a_second_run_waits_for_the_first(made):
    with (made.parent / "swift.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = begun(made)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.communicate(timeout=0.5)
        fcntl.flock(lock, fcntl.LOCK_UN)
        out, _ = waiting.communicate(timeout=60)
    assert out == f"{made}/on-path\n"
