"""The compiled kernels' library: made, kept and loaded so that nobody else's code ever runs."""

import hashlib
import os
from pathlib import Path
import shutil
import stat
import subprocess
import sys
import tempfile

from mlprogram import machine
from mlprogram.errors import InvalidInput
from mlprogram.kernels import library
import pytest

FUNCTION = "#include <stdint.h>\nint32_t answer(void) { return 42; }\n"
OTHER = 54321  # a user's number that has no name

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, and a small source instead of the kernels."""
    source = tmp_path / "answer.c"
    source.write_text(FUNCTION)
    monkeypatch.setattr(library, "SOURCES", [source])
    monkeypatch.setenv("MLPROGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "tmp").mkdir()
    if library.load(["answer"])[0] is None:
        pytest.skip("no C compiler")
    for path in (tmp_path / "cache" / "kernels").iterdir():
        path.unlink()
    return tmp_path / "cache"


def answer() -> str:
    """What `load` says of a library that works."""
    found, said = library.load(["answer"])
    assert found is not None and found.answer() == 42, said
    return said


def kept(cache: Path) -> Path:
    """The one file in the cache's folder of libraries."""
    (path,) = (cache / "kernels").iterdir()
    return path


def build(source: str, path: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


class TestKept:
    def test_a_library_is_made_once(self, cache):
        assert answer().startswith("made by") and "alone" not in answer()
        made = kept(cache).stat()
        assert answer() and kept(cache).stat() == made

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_nobody_else_may_read_or_write_it(self, tmp_path, cache, monkeypatch, umask):
        monkeypatch.setenv("MLPROGRAM_CACHE", str(tmp_path / "new"))
        before = os.umask(umask)
        try:
            answer()
        finally:
            os.umask(before)
        for path in (tmp_path / "new" / "kernels", kept(tmp_path / "new")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700

    @pytest.mark.parametrize("damage", ["cut", "emptied", "a bit", "longer"])
    def test_a_damaged_one_is_made_again(self, cache, damage):
        answer()
        path, content = kept(cache), kept(cache).read_bytes()
        half = len(content) // 2
        path.unlink()  # this process has it loaded, and would die of a file cut short
        path.write_bytes(
            {
                "cut": content[:half],
                "emptied": b"",
                "a bit": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
                "longer": content + b"\0",
            }[damage]
        )
        assert "alone" not in answer()
        assert kept(cache).read_bytes() == content

    def test_one_without_the_functions_is_made_again(self, tmp_path, cache):
        """Even where its name fits its content."""
        answer()
        path, wrong = kept(cache), tmp_path / "wrong.so"
        build("int question(void) { return 1; }", wrong)
        wrong.chmod(0o700)
        digest = hashlib.sha256(wrong.read_bytes()).hexdigest()
        path.unlink()
        wrong.rename(path.with_name(f"{path.name.split('-')[0]}-{digest}.so"))
        assert "alone" not in answer()
        assert kept(cache) == path

    def test_functions_that_the_sources_lack_are_told(self, cache):
        found, said = library.load(["answer", "question"])
        assert found is None and "cannot be loaded" in said and "torch" in said


class TestOthersCode:
    """What somebody else put there, or could have, does not run."""

    @pytest.fixture
    def planted(self, tmp_path, cache) -> Path:
        """A library that leaves a mark when it is loaded, with a sound one's name and mode."""
        self.mark = tmp_path / "mark"
        run = f'void run(void) {{ creat("{self.mark}", 0600); }}'
        code = f"#include <fcntl.h>\n{FUNCTION}__attribute__((constructor)) {run}"
        build(code, tmp_path / "evil.so")
        (tmp_path / "evil.so").chmod(0o700)
        answer()
        path = kept(cache)
        path.unlink()
        digest = hashlib.sha256((tmp_path / "evil.so").read_bytes()).hexdigest()
        path = path.with_name(f"{path.name.split('-')[0]}-{digest}.so")
        return (tmp_path / "evil.so").rename(path)

    def test_the_mark_is_left_by_what_is_the_users_own(self, planted):
        """So that the tests below would see it."""
        answer()
        assert self.mark.exists()

    def spoil(self, path: Path, how: str | int) -> None:
        """Make a path another user's, a link to what lay there, a pipe, or of this mode."""
        if how == "another user's":
            if os.geteuid() != 0:
                pytest.skip("only root gives files away")
            os.chown(path, OTHER, OTHER)
        elif how == "a link":
            path.symlink_to(path.rename(self.mark.with_name("elsewhere")))
        elif how == "a pipe":
            path.unlink()
            os.mkfifo(path)
        else:
            path.chmod(how)

    @pytest.mark.parametrize("how", ["another user's", "a link", "a pipe", 0o720, 0o702, 0o777])
    def test_a_file(self, planted, cache, how):
        """Nor is a pipe waited for."""
        self.spoil(planted, how)
        assert "alone" not in answer()
        found = kept(cache).lstat()
        assert not self.mark.exists() and stat.S_ISREG(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()

    @pytest.mark.parametrize("how", ["another user's", "a link", 0o770, 0o707, 0o777])
    def test_a_folder(self, planted, tmp_path, how):
        self.spoil(planted.parent, how)
        said = answer()
        assert "for this process alone" in said and str(planted.parent) in said
        assert not self.mark.exists() and planted.exists()
        assert list((tmp_path / "tmp").iterdir()) == []


class TestWithoutACache:
    def test_a_folder_that_cannot_be_made(self, cache, monkeypatch):
        monkeypatch.setenv("MLPROGRAM_CACHE", os.devnull)
        assert f"for this process alone ({os.devnull}/kernels: Not a directory)" in answer()

    @pytest.fixture
    def full_disk(self, tmp_path):
        """A file system without any room, and on it a private folder for kernels."""
        path = tmp_path / "disk"
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
        if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root of a Linux machine may mount a small disk")
        (path / "kernels").mkdir(mode=0o700)
        (path / "filler").write_bytes(bytes(shutil.disk_usage(path).free))
        yield path
        subprocess.run(["umount", str(path)], check=True)

    @pytest.fixture
    def compiler(self, tmp_path, monkeypatch):
        """A file with a line for each time that the compiler makes a library."""
        runs, command = tmp_path / "runs", tmp_path / "compiler"
        command.write_text(
            f'#!/bin/sh\ncase "$*" in *-shared*) echo one >> {runs};; esac\nexec cc "$@"\n'
        )
        command.chmod(0o700)
        monkeypatch.setenv("CC", str(command))
        return runs

    def test_a_full_disk_costs_one_compilation_and_is_said(
        self, cache, full_disk, compiler, monkeypatch, caplog
    ):
        monkeypatch.setenv("MLPROGRAM_CACHE", str(full_disk))
        said = f"{full_disk}/kernels: No space left on device"
        assert f"for this process alone ({said})" in answer()
        assert compiler.read_text() == "one\n"
        (warning,) = caplog.messages
        assert said in warning and "set MLPROGRAM_CACHE" in warning
        assert list((full_disk / "kernels").iterdir()) == []

    def test_no_room_to_compile_in_is_no_fault_of_the_compiler(
        self, cache, full_disk, compiler, monkeypatch, caplog
    ):
        monkeypatch.setattr("tempfile.tempdir", str(full_disk / "kernels"))
        found, said = library.load(["answer"])
        assert found is None and compiler.read_text() == "one\n"
        assert f"cannot be made ([Errno 28] No space left on device: '{full_disk}/kern" in said
        assert caplog.messages == [f"there are no compiled kernels: {said}"]

    def test_a_user_without_home(self, cache, tmp_path, monkeypatch):
        for name in ("HOME", "XDG_CACHE_HOME", "MLPROGRAM_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "getuid", lambda: OTHER)  # whom the system's list does not have
        with pytest.raises(InvalidInput, match="no home folder.*MLPROGRAM_CACHE"):
            machine.cache_folder()
        assert "for this process alone (this user has no home" in answer()
        monkeypatch.setenv("MLPROGRAM_CACHE", str(tmp_path / "chosen"))
        assert machine.cache_folder() == tmp_path / "chosen"
        assert "alone" not in answer()

    @as_root
    @pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
    def test_a_process_of_such_a_user(self):
        """A whole process: nobody's number, no home, and no folder that it may write but TMPDIR."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o1777)
            Path(folder, "answer.c").write_text(FUNCTION)
            code = f"""
import os
from mlprogram.kernels import library
library.SOURCES = [library.Path({folder!r}, "answer.c")]
os.chdir("/"), os.setgroups([]), os.setgid({OTHER}), os.setuid({OTHER})
found, said = library.load(["answer"])
print(found and found.answer(), said)
"""
            paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": folder}
            found = subprocess.run(
                [sys.executable, "-c", code], env={"PATH": os.environ["PATH"], **paths},
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        assert found.startswith("42 made by"), found
        assert "for this process alone (this user has no home" in found


class TestCompiler:
    def test_arguments_of_cc_are_passed_on(self, cache, tmp_path, monkeypatch):
        (tmp_path / "answer.c").write_text("int answer(void) { return ASKED; }")
        monkeypatch.setenv("CC", "cc -DASKED=42 -I '/with a blank'")
        assert "-DASKED=42 -I /with a blank" in answer()

    def test_other_arguments_are_another_library(self, cache, monkeypatch):
        answer()
        monkeypatch.setenv("CC", "cc -DSOMETHING")
        answer()
        assert len(list((cache / "kernels").iterdir())) == 2

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            ("no-such-compiler -m64", "CC='no-such-compiler -m64' cannot be found"),
            ("gcc 'open", "is no command: No closing quotation"),
            ("false", "false cannot compile them"),
            ("cc -no-such-flag", "cc -no-such-flag cannot compile them"),
            ("cc -lno-such-library", "-lno-such-library cannot compile them ("),
        ],
    )
    def test_what_is_wrong_with_cc_is_said(self, cache, monkeypatch, command, said):
        monkeypatch.setenv("CC", command)
        found, reason = library.load(["answer"])
        assert found is None and said in reason and reason.endswith("torch, more slowly")
        assert "ld returned" not in reason, "that is never the reason"

    def test_none_is_said(self, cache, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        assert library.load(["answer"]) == (
            None, "no C compiler (CC, cc, gcc, clang); products go through torch, more slowly",
        )  # fmt: skip
