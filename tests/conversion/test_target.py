"""Where bundles go: nothing of a user's is lost, nothing half-written stays, no stale one is found.

Conversions here are of one layer, the quickest there are.
"""

from functools import partial
import os
from pathlib import Path
import shutil
import subprocess
import sys

from _command import ane_book as command
from _command import refused
from _patience import HANGING
import ane_book
from ane_book.bundle import Bundle, cache
from ane_book.conversion.target import exchange
from ane_book.errors import InvalidInput
import pytest

SMALL = {"num_hidden_layers": 1}
SHORT = {"context": 32, "prefill": 8}


@pytest.fixture
def weights(tiny) -> str:
    return str(tiny("llama", **SMALL)[1])


@pytest.fixture
def convert(weights):
    return partial(ane_book.convert, weights, **SHORT)


@pytest.fixture
def made(tiny_bundle, tmp_path) -> Path:
    """A bundle of the same weights and recipe, to be written over."""
    _, bundle = tiny_bundle("llama", tuple(SMALL.items()), **SHORT)
    return Path(shutil.copytree(bundle.path, tmp_path / "made"))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stop(*_) -> None:
    raise KeyboardInterrupt


class TestTarget:
    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("inner", ["2019", ".DS_Store"])  # the second is ignored as a file
    def test_a_folder_with_other_things_stays_as_it_is(self, convert, tmp_path, inner, force):
        (tmp_path / "photos" / inner).mkdir(parents=True)
        (tmp_path / "photos" / inner / "one.jpg").write_bytes(b"irreplaceable")
        before = tree(tmp_path)
        with pytest.raises(InvalidInput, match="photos is neither empty nor a bundle"):
            convert(out=tmp_path / "photos", force=force)
        assert tree(tmp_path) == before

    def test_what_lies_in_a_bundle_is_not_deleted_with_it(self, convert, made):
        (made / "notes.txt").write_text("mine")
        with pytest.raises(InvalidInput, match="holds notes.txt, which is not part of it"):
            convert(out=made, force=True)
        assert (made / "notes.txt").read_text() == "mine" and Bundle.open(made)

    @pytest.mark.parametrize("force", [False, True])
    def test_what_is_no_folder(self, weights, convert, tmp_path, monkeypatch, force):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "here").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "here")
        (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
        (tmp_path / "loop").symlink_to("loop")
        monkeypatch.chdir(tmp_path / "here")
        before = sorted(tmp_path.rglob("*"))
        for name, message in [
            (tmp_path / "file", "file is not a folder"),
            (tmp_path / "link", "is a symbolic link"),
            (tmp_path / "dangling", "is a symbolic link"),
            (tmp_path / "loop", "is a symbolic link"),
            (tmp_path / "loop" / "b", "loop: Too many levels of symbolic links; name another"),
            (".", "is the folder that you are in"),
            ("..", "is the folder that you are in"),
            ("", "is the folder that you are in"),
            ("/", "is a mount point"),
            ("a\0b", "is no path"),
        ]:
            with pytest.raises(InvalidInput, match=message):
                convert(out=name, force=force)
        assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_text() == "mine"
        assert "you are in" in refused("convert", weights, "--out", ".", "--force")

    def test_an_empty_folder_is_taken(self, convert, tmp_path):
        (tmp_path / "empty").mkdir()
        assert convert(out=tmp_path / "empty").path == tmp_path / "empty"
        assert [path.name for path in tmp_path.iterdir()] == ["empty"]  # no lock, no old one

    @pytest.mark.skipif(os.name == "nt", reason="/dev/null is POSIX's")
    def test_a_cache_that_cannot_be_written(self, convert, tmp_path, monkeypatch):
        monkeypatch.setenv("ANE_BOOK_CACHE", "/dev/null/cache")
        with pytest.raises(InvalidInput, match="/dev/null/cache.* ANE_BOOK_CACHE"):
            convert()


class TestReplacing:
    def test_a_failed_conversion_leaves_the_old_bundle(self, convert, made):
        before = tree(made)
        with pytest.raises(KeyboardInterrupt):
            convert(out=made, context=16, force=True, progress=stop)
        assert tree(made) == before
        again = convert(out=made, context=16, force=True)  # goes on
        assert again.recipe.context == 16
        assert [path.name for path in made.parent.iterdir()] == ["made"]

    def test_a_second_rename_that_fails_is_undone(self, made):
        before = tree(made)
        with pytest.raises(OSError):
            exchange(made.with_name("nothing"), made)
        assert tree(made) == before and [p.name for p in made.parent.iterdir()] == ["made"]

    def test_killed_between_the_two_renames_the_old_bundle_comes_back(self, convert, made):
        before = tree(made)
        made.rename(made.with_name("made.replaced"))
        assert tree(convert(out=made).path) == before
        made.rename(made.with_name("made.replaced"))
        made.mkdir()  # by the user's script, say
        assert tree(convert(out=made, progress=stop).path) == before
        shutil.copytree(made, made.with_name("made.replaced"))  # killed after both
        convert(out=made)
        assert [path.name for path in made.parent.iterdir()] == ["made"]

    def test_a_folder_that_only_has_such_a_name_is_not_touched(self, convert, tmp_path):
        for name in ("b.replaced", "b.partial"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "mine").write_text("mine")
            with pytest.raises(InvalidInput, match=f"{name} is neither empty nor a bundle"):
                convert(out=tmp_path / "b")
            assert (tmp_path / name / "mine").read_text() == "mine"
            shutil.rmtree(tmp_path / name)
            (tmp_path / name).symlink_to(tmp_path)
            with pytest.raises(InvalidInput, match=f"{name} is in the way"):
                convert(out=tmp_path / "b")
            (tmp_path / name).unlink()

    @pytest.mark.parametrize(  # goes on, or begins anew
        ("name", "context"),
        [("notes.txt", 32), ("mine/one.jpg", 16), ("layers_00-01.mlpackage/mine", 32)],
    )
    def test_what_lies_in_an_unfinished_bundle_is_not_deleted(
        self, convert, tmp_path, name, context
    ):
        def stop_in_the_head(description: str, done: int, total: int) -> None:
            if description == "head":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(out=tmp_path / "b", progress=stop_in_the_head)
        file = tmp_path / "b.partial" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
        (tmp_path / "b.partial" / ".DS_Store").write_text("a system's")
        before = tree(tmp_path)
        found = name if file.parent.suffix else name.partition("/")[0]
        with pytest.raises(InvalidInput, match=rf"b.partial holds {found}, .*move it away"):
            convert(out=tmp_path / "b", context=context)
        assert tree(tmp_path) == before
        file.rename(tmp_path / "kept")
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
        convert(out=tmp_path / "b", context=context).verify()
        assert (tmp_path / "kept").read_text() == "mine"

    def test_what_the_disk_lost_is_made_again(self, convert, tmp_path):
        """The machine went down: a file that was finished has its size, but not its bytes."""
        out = tmp_path / "b"

        def stop_late(description: str, done: int, total: int) -> None:
            if description.startswith("layer 1"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(out=out, progress=stop_late)
        lost = tmp_path / "b.partial" / "embedding.npy"
        lost.write_bytes(bytes(lost.stat().st_size))
        bundle = convert(out=out)
        bundle.verify()
        assert bundle.embedding.any()

    def test_a_damaged_bundle_in_the_cache_is_made_again(self, convert, empty_cache):
        first = convert()
        (first.path / "golden.npz").unlink()
        again = convert()
        assert again.path == first.path and again.golden()
        (first.path / "manifest.json").write_text("")
        assert convert().path == first.path


def test_the_next_one_waits_and_says_so(weights, tmp_path):
    out = tmp_path / "b"
    code = f"import ane_book; ane_book.convert({weights!r}, out={str(out)!r}, **{SHORT!r})"
    with cache.locked(out):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        said = child.stderr.readline()
        assert said == f"waiting for another process, which is writing {out}\n"
        assert not out.exists()
    _, err = child.communicate(timeout=HANGING)
    assert (child.returncode, err) == (0, "") and Bundle.open(out)


class TestKeys:
    def test_a_reference_models_file_counts(self, tmp_path, monkeypatch):
        """A name leads to other weights: what it led to before is not found by it."""
        from dataclasses import replace

        from ane_book import conversion
        from ane_book.conversion.target.key import bundle_key

        name = "smollm2-135m-instruct"
        found = conversion.find_reference(name)
        before = bundle_key(found, {})
        assert bundle_key(replace(found, revision="other"), {}) != before


class TestNames:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_what_was_remembered(self, folder):
        bundle = folder / "bundles" / ("tiny-" + "a" * 16)
        bundle.mkdir(parents=True)
        cache.remember("key", bundle)
        assert cache.recall("key") == bundle and cache.recall("other") is None
        assert [path.name for path in (folder / "names").iterdir()] == ["key"]
        bundle.rmdir()
        assert cache.recall("key") is None

    @pytest.mark.parametrize("text", ["", ".", "..", "../x-{0}", "{1}", "x/y-{0}", "\0", "\udcff"])
    def test_a_damaged_note_leads_nowhere(self, folder, tmp_path, monkeypatch, text):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "manifest.json").write_text("{}")
        (folder / "names").mkdir(parents=True)
        content = text.format("a" * 16, tmp_path).encode(errors="surrogateescape")
        (folder / "names" / "key").write_bytes(content)
        assert cache.recall("key") is None


class TestCacheCommand:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch) -> Path:
        """Three bundles of 1,000 bytes, used one after another, and what is no bundle."""
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
        folder = tmp_path / "bundles"
        for i, name in enumerate("abc"):
            self.path(folder, name).mkdir(parents=True)
            (self.path(folder, name) / "manifest.json").write_bytes(bytes(1000))
            os.utime(self.path(folder, name), (1e9 + i, 1e9 + i))
        (folder / "mine").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "file").write_text("mine")
        (folder / f"link-{'0' * 16}").symlink_to(tmp_path / "elsewhere")
        return folder

    def path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}-{ord(name):016x}"

    def left(self, folder: Path) -> set[str]:
        assert (folder / "mine").is_dir() and (folder.parent / "elsewhere" / "file").exists()
        return {path.name[0] for path in folder.iterdir() if path.name[:4] not in ("mine", "link")}

    def test_lists_sizes_and_last_use(self, folder):
        lines = command("cache").stdout.splitlines()
        assert [line.split()[0][0] for line in lines[:3]] == ["c", "b", "a"]
        assert "1,000 bytes" in lines[0] and "2001-09" in lines[0]
        assert len(lines) == 4 and "3,000 bytes" in lines[3]
        cache.mark_used(self.path(folder, "a"))
        assert command("cache").stdout[0] == "a"

    def test_deletes_by_name_and_all(self, folder):
        done = command("cache", "delete", self.path(folder, "b").name)
        assert done.stdout == f"deleted {self.path(folder, 'b').name}, 1,000 bytes\n"
        assert self.left(folder) == {"a", "c"}
        for name in ("mine", f"link-{'0' * 16}", "../elsewhere", str(folder), ""):
            assert "keeps no" in refused("cache", "delete", name)
        assert self.left(folder) == {"a", "c"}
        command("cache", "delete", "--all")
        assert self.left(folder) == set()

    def test_what_is_being_written_stays(self, folder):
        with cache.locked(self.path(folder, "a")):
            assert "writing it" in refused("cache", "delete", self.path(folder, "a").name)
        assert "a" in self.left(folder)


class TestContext:
    def test_no_more_than_the_model_has(self, tiny, empty_cache):
        _, folder = tiny("llama", **SMALL, max_position_embeddings=48)
        bundle = ane_book.convert(str(folder))
        assert (bundle.recipe.context, bundle.recipe.prefill) == (48, 48)
        with pytest.raises(InvalidInput, match="context 512 is beyond .* give at most 48"):
            ane_book.convert(str(folder), context=512)
