"""Full disks: nothing that loads is left, and with room again the conversion goes on."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
import re
import shutil
import subprocess
import sys

from _full_disk import room_for
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, OutOfSpace
from mlprogram.files import regular_files
from mlprogram.onnx.graph import convert_graph
import numpy as np
import onnx
from onnx import helper, numpy_helper
import pytest

CUT = {"shard_limit": 150_000, "head_rows": 100}


class TestFullDisk:
    def check(self, folder: Path, out: Path, expected: Bundle) -> None:
        """Nothing that loads is there; with room again, the conversion ends as if undisturbed."""
        assert not out.exists()
        with pytest.raises(InvalidBundle):
            Bundle.open(out.with_name(f"{out.name}.partial"))
        recipe = CUT if expected.recipe.head_rows == CUT["head_rows"] else {}
        made = ane_book.convert(str(folder), out=out, context=32, prefill=8, **recipe)
        assert made.manifest.files == expected.manifest.files

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
    def test_a_file_that_cannot_be_written(self, tiny, tiny_bundle, tmp_path):
        """The embedding, which numpy writes; the weights of a package, which C++ writes."""
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", kv="state")
        out = tmp_path / "b"
        for size, step in ((20_000, "0"), (100_000, "[34]")):  # a layer may be read ahead, or not
            says = f"b.partial: the disk took no more after step {step} of 6; make"
            with pytest.raises(OutOfSpace, match=says), room_for(size):
                ane_book.convert(str(folder), out=out, context=32, prefill=8)
        self.check(folder, out, expected)

    @pytest.fixture
    def small_disk(self, tmp_path) -> Iterator[Path]:
        """A file system of one megabyte."""
        path = tmp_path / "disk"
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
        if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root of a Linux machine may mount a small disk")
        yield path
        subprocess.run(["umount", str(path)], check=True)

    def test_a_disk_that_fills_up_in_the_middle(self, tiny, tiny_bundle, small_disk):
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", **CUT)
        filler = small_disk / "filler"

        def fill(description: str, done: int, total: int) -> None:
            if description.startswith("layer 1") and not filler.exists():
                filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))

        convert = partial(ane_book.convert, str(folder), context=32, prefill=8)
        with pytest.raises(OutOfSpace, match="took no more after step 3 of 6; make room"):
            convert(out=small_disk / "b", **CUT, progress=fill)
        filler.unlink()
        self.check(folder, small_disk / "b", expected)

    def test_a_graph_on_a_disk_that_is_full(self, small_disk, tmp_path):
        """The package that was there stays, and nothing is left of the new one."""
        values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        product = helper.make_node("MatMul", ["x", "w"], ["y"])
        real = onnx.TensorProto.FLOAT
        x, y = (helper.make_tensor_value_info(name, real, [1, 64]) for name in "xy")
        made = helper.make_graph([product], "g", [x], [y], [numpy_helper.from_array(values, "w")])
        opsets = [helper.make_opsetid("", 17)]
        graph = tmp_path / "g.onnx"
        onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), graph)
        out = convert_graph(graph, small_disk / "g.mlpackage")
        before = regular_files(small_disk)
        for free in (10_000, 0):
            filler = small_disk / "filler"
            filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - free))
            with pytest.raises(OutOfSpace, match="No space left on device; make room"):
                convert_graph(graph, out, "fp32", force=True)
            filler.unlink()
            assert regular_files(small_disk) == before
        convert_graph(graph, out, "fp32", force=True)

    def test_a_disk_too_small_from_the_start(self, tiny, small_disk):
        _, folder = tiny("llama")
        (small_disk / "filler").write_bytes(bytes(900_000))
        with pytest.raises(OutOfSpace) as error:
            ane_book.convert(str(folder), out=small_disk / "b", context=32, prefill=8)
        needed, free = re.findall(r"([\d.]+) MB", str(error.value))
        assert float(needed) > float(free) and float(needed) < 1
        assert [path.name for path in small_disk.iterdir()] == ["filler"]
