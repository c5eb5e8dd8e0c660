"""What a machine, and a limit on a process in it, allow."""

from pathlib import Path
import resource
import sys

from mlprogram import MLProgram, machine
from mlprogram.errors import InvalidPackage
import pytest

MB = 1 << 20


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """`groups(own, **limits)` -> the memory, in a tree of control groups made like that.

    own: the lines of /proc/self/cgroup. limits: a file of the tree -> what stands in it.
    """
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")

    def make(own: str, limits: dict[str, object]) -> int | None:
        (tmp_path / "own").write_text(own)
        for name, limit in limits.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{limit}\n")
        return machine.memory_bytes()

    return make


V2, V1 = "memory.max", "memory.limit_in_bytes"
NONE = 9223372036854771712  # how version 1 says that there is no limit


class TestMemory:
    @pytest.mark.skipif(sys.platform != "linux", reason="/proc/meminfo is Linux's")
    def test_is_the_machines_without_a_limit(self, groups, tmp_path):
        whole = groups("0::/\n", {})
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        assert whole == int(meminfo["MemTotal"].split()[0]) * 1024
        assert groups("0::/user\n", {f"user/{V2}": "max"}) == whole
        assert groups("4:memory:/\n", {f"memory/{V1}": NONE}) == whole
        (tmp_path / "own").unlink()
        assert machine.memory_bytes() == whole

    @pytest.mark.parametrize(
        ("own", "limits"),
        [
            ("0::/\n", {V2: 64 * MB}),
            ("0::/a/b\n", {f"a/b/{V2}": 64 * MB, V2: 900 * MB}),
            ("0::/a/b\n", {f"a/b/{V2}": "max", f"a/{V2}": 64 * MB}),
            ("0::/docker/c0ffee\n", {V2: 64 * MB}),
            ("0::/../../elsewhere\n", {V2: 64 * MB}),
            ("9:name=systemd:/\n4:memory:/a:b\n0::/\n", {f"memory/a:b/{V1}": 64 * MB}),
            ("4:cpu,memory:/a/b\n", {f"memory/a/b/{V1}": NONE, f"memory/a/{V1}": 64 * MB}),
            ("4:memory:/docker/c0ffee\n", {f"memory/{V1}": 64 * MB}),
        ],
        ids=["v2", "v2 own", "v2 around", "v2 container", "v2 outside", "v1 own", "v1 around",
             "v1 container"],
    )  # fmt: skip
    def test_is_the_least_of_the_groups_limits(self, groups, own, limits):
        assert groups(own, limits) == 64 * MB

    def test_other_groups_do_not_count(self, groups):
        whole = groups("0::/a\n5:cpu:/b\n", {})
        limits = {f"b/{V2}": MB, f"a/b/{V2}": MB, f"memory/a/{V1}": MB, f"cpu/b/{V1}": MB}
        assert groups("0::/a\n5:cpu:/b\n", limits) == whole

    def test_is_what_the_process_may_address(self, groups):
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit = groups("0::/\n", {}) // 2  # far more than is in use
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            assert machine.memory_bytes() == limit
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def test_a_program_beyond_it_is_refused(self, groups, decoder_of):
        """Once such a process was killed."""
        path = decoder_of(1)
        groups("0::/a\n", {f"a/{V2}": 64 * MB})
        MLProgram(path)
        groups("0::/a\n", {f"a/{V2}": 64 << 10})
        with pytest.raises(InvalidPackage, match="would take 0.0 GiB, more than the 0.0 GiB"):
            MLProgram(path)
