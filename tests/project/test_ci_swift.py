"""`.ci/swift`, on the folder that a whole run leaves: what it prints, and for whom it waits.

The run that fills the folder takes minutes and the network; here the folder has the files by which
the script knows a system of either kind of processor, and where it has to be filled, a script does
that in debootstrap's place.
"""

import fcntl
import os
from pathlib import Path
import shutil
import signal
import subprocess

from _patience import until
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


def begun(root: Path, **env: str) -> subprocess.Popen[str]:
    env = os.environ | {"ANE_BOOK_SWIFT": str(root)} | env
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


def mounts(root: Path) -> list[str]:
    """What is mounted below a folder."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{root}/")]


FILL = """#!/bin/sh
for root; do :; done  # the last word
mkdir -p "$root/proc" "$root/lib64" "$root/usr/lib/x86_64-linux-gnu" "$root/var/cache/apt/archives"
touch "$root/lib64/ld-linux-x86-64.so.2"
mount -t proc proc "$root/proc"
[ ! -e "$HANGS" ] || { touch "$HANGS.begun"; sleep 600; }
"""


def test_a_run_that_was_killed_leaves_nothing_that_stops_the_next(tmp_path):
    """Neither what it has mounted, nor a /proc that an earlier version left in the folder."""
    root, hangs = tmp_path / "swift", tmp_path / "hangs"
    fill = tmp_path / "bin" / "debootstrap"
    fill.parent.mkdir()
    fill.write_text(FILL)
    fill.chmod(0o755)
    path = f"{fill.parent}:{os.environ['PATH']}"
    hangs.touch()
    first = subprocess.Popen(
        [SCRIPT],
        env=os.environ | {"ANE_BOOK_SWIFT": str(root), "PATH": path, "HANGS": str(hangs)},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    until(Path(f"{hangs}.begun").exists)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert mounts(root) == []
    (root / "proc").mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "proc", "proc", root / "proc"]).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        hangs.unlink()
        out, err = begun(root, PATH=path, HANGS=str(hangs)).communicate(timeout=60)
        assert out == f"{root}/on-path\n", err
        assert "swift made in" in err
        assert (root / ".ready").exists()
    finally:
        subprocess.run(["umount", "-l", root / "proc"], stderr=subprocess.DEVNULL)
    assert mounts(root) == []
