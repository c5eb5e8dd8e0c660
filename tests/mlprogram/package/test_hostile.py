"""A package is untrusted input: whatever it holds, it is refused with the reason, or it runs.

Each case here is one kind of damage or attack, made by hand; `tests/fuzz` makes them by the
thousand.
"""

import os
import struct

from _package import (
    ADD,
    MODEL,
    WEIGHTS,
    X,
    blob,
    block,
    const,
    edit,
    op,
    refused,
    run,
    typed,
)
from mlprogram import inspect as inspect_package
from mlprogram.errors import MLProgramError
from mlprogram.package.files import proto
import numpy as np
import pytest


@pytest.fixture
def weighted(make):
    """`weighted(offset, file)` writes a package of one constant, which lies there."""
    type_, weights = typed("fp16", 6), [(1, np.arange(6, dtype=np.float16).tobytes())]
    return lambda *place: make(
        [op("const", {"y": type_}, val=blob(type_, *(place or [64])))], weights=weights
    )


class TestFiles:
    @pytest.mark.parametrize(
        "manifest",
        ["", "{", "[]", "null", '"x"', "7", "{}", "[" * 100_000, '{"rootModelIdentifier": []}',
         '{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": 7}}}',
         '{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": null}}}',
         '{"rootModelIdentifier": "a", "itemInfoEntries": []}', "\x00", "x" * (2 << 20)],
    )  # fmt: skip
    def test_a_manifest_that_is_none(self, package, manifest):
        (package / "Manifest.json").write_text(manifest)
        refused(package, r"not a \.mlpackage|more than such a file")

    def test_a_manifest_in_no_encoding(self, package):
        (package / "Manifest.json").write_bytes(b"\xff\xfe\xfd")
        refused(package, r"not a \.mlpackage")

    @pytest.mark.parametrize(
        "path",
        ["../../outside", "/etc/hostname", "", ".", "com.apple.CoreML", "nothing", "a\x00b",
         "x" * 5000, "../" * 500],
    )  # fmt: skip
    def test_a_model_elsewhere(self, package, path):
        (package.parent / "outside").write_bytes((package / MODEL).read_bytes())
        manifest = (package / "Manifest.json").read_text()
        changed = manifest.replace(
            "com.apple.CoreML/model.mlmodel", path.replace("\x00", r"\u0000")
        )
        (package / "Manifest.json").write_text(changed)
        refused(package, "is not in the package")

    @pytest.mark.parametrize("name", ["Manifest.json", "Data", str(MODEL), str(WEIGHTS.parent)])
    def test_a_link_that_leads_outside(self, weighted, tmp_path, name):
        package = weighted()
        assert run(package)["y"].tolist() == [0, 1, 2, 3, 4, 5]
        outside = (package / name).rename(tmp_path / "outside")
        (package / name).symlink_to(outside)
        refused(package, "is not in the package")

    def test_a_link_within_the_package_is_followed(self, package):
        inside = (package / MODEL).rename(package / "Data" / "elsewhere")
        (package / MODEL).symlink_to(inside)
        assert run(package)["y"].sum() == 12

    @pytest.mark.parametrize("name", ["Manifest.json", str(MODEL), str(WEIGHTS)])
    @pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "nothing", "empty"])
    def test_a_file_that_is_none(self, weighted, name, kind):
        package = weighted()
        path = package / name
        path.unlink()
        {"pipe": lambda: os.mkfifo(path), "folder": path.mkdir, "nothing": lambda: None,
         "loop": lambda: path.symlink_to(path), "device": lambda: path.symlink_to("/dev/zero"),
         "empty": path.touch}[kind]()  # fmt: skip
        refused(package, "is not in the package|is empty|not a .mlpackage|holds no model")

    @pytest.mark.parametrize("name", ["Manifest.json", str(MODEL), str(WEIGHTS)])
    def test_a_file_that_may_not_be_read(self, weighted, name):
        package = weighted()
        (package / name).chmod(0)
        if os.access(package / name, os.R_OK):
            pytest.skip("root reads every file")
        refused(package, "cannot be (read|mapped)")

    def test_a_model_of_more_bytes_than_protobuf_takes(self, package):
        os.truncate(package / MODEL, 1 << 40)  # of zeros that no disk holds
        refused(package, "more than such a file can have")


class TestProtobuf:
    @pytest.mark.parametrize("kind", ["stateType.wrappedType", "listType.type"])
    @pytest.mark.parametrize("depth", [2, 40, 400])
    def test_types_in_types(self, package, kind, depth):
        def change(model):
            type_ = model.mlProgram.functions["main"].inputs[0].type
            for _ in range(depth):
                for part in kind.split("."):
                    type_ = getattr(type_, part)
            type_.CopyFrom(X)

        refused(edit(package, change), "anything but tensors|is damaged")

    def test_blocks_in_blocks(self, make):
        """As deep as protobuf reads: 100 messages in each other."""
        inner = [op("add", {"y40": X}, x="x", y="x")]
        for level in reversed(range(40)):
            other = block([op("abs", {f"z{level}": X}, x="x")], [f"z{level}"])
            both = [block(inner, [f"y{level + 1}"]), other]
            inner = [op("cond", {f"y{level}": X}, both, pred=const(True))]
        assert run(make(inner, ["y0"]))["y0"].sum() == 12

    def test_a_version_that_is_newer(self, package):
        def newer(model):
            model.mlProgram.version = 2

        refused(edit(package, newer), "version 2 of ML Programs")


class TestTypes:
    @pytest.mark.parametrize(
        "shape", [[2**60], [2**32, 2**32], [2**63, 2], [2**64 - 1], [2**16] * 8, [0, 2**64 - 1]]
    )
    def test_a_shape_that_no_tensor_has(self, make, shape):
        path = make([ADD], inputs={"x": typed("fp32", *shape)})
        refused(path, "too large to be real|must be fp32", MLProgramError)

    def test_more_memory_than_there_is(self, make):
        path = make([ADD], inputs={"x": typed("fp32", 2**40)})  # 4 TiB
        refused(path, "more than the .* GiB of memory here")
        assert inspect_package(path)["functions"]  # which needs no memory for it

    def test_a_splat_of_terabytes(self, make):
        huge = typed("fp32", 2**40)
        path = make([op("const", {"y": huge}, val=const([1.0], "fp32", [2**40]))])
        refused(path, "more than the .* GiB of memory here")

    def test_many_constants_that_fit_one_by_one(self, make):
        size, count = 2**31, 2**10  # 8 GiB each
        type_ = typed("fp32", size)
        operations = [
            op("const", {f"c{i}": type_}, val=const([1.0], "fp32", [size])) for i in range(count)
        ]
        refused(make([*operations, ADD]), "(constants|value 'c0').* would take")

    @pytest.mark.parametrize(
        ("type_", "match"),
        [
            (typed("string"), "a tensor of string"),
            (typed("uint4", 2), "a tensor of uint4"),
            (typed("fp32", None, kind="state"), "has no fixed size"),
            (proto("MIL_pb2").ValueType(), "of kind None"),
        ],
    )
    def test_an_input_that_nobody_can_give(self, make, type_, match):
        refused(make([ADD], inputs={"x": type_}), match)

    def test_more_axes_than_an_array_has(self, make):
        many = typed("fp32", *[1] * 65)
        refused(make([ADD], inputs={"x": many}), "a tensor of 65 axes; 64 are the most")
        ones = const([1.0], "fp32", [1] * 65)
        refused(make([op("const", {"y": many}, val=ones)]), "a tensor of 65 axes")
        undeclared = op("expand_dims", {"y": typed("fp32", None)}, x="x", axes=const([*range(63)]))
        refused(make([undeclared]), "a value of 65 axes; 64 are the most")
        fewer = op("expand_dims", {"y": typed("fp32", None)}, x="x", axes=const([*range(62)]))
        assert run(make([fewer]))["y"].ndim == 64

    def test_an_output_that_is_not_what_was_declared(self, make):
        for declared in (typed("fp32", 3, 2), typed("fp16", 2, 3), typed("fp32", 2, 3, 1)):
            path = make([op("add", {"y": declared}, x="x", y="x")])
            refused(path, r"output 'y' is declared as .*, and its ops make a float32\(2, 3\)")


class TestConstants:
    @pytest.mark.parametrize(
        ("value", "match"),
        [
            (const([1.0, 2.0], "fp32", [3]), "2 values are given"),
            (const([300], "int8", [1]), "is no int8"),
            (const(["a"], "fp32", [1]), "strings are given for fp32"),
            (const([1.0], "string", [1]), "floats are given for string"),
            (const([1.0], "fp32", [None]), "flexible size"),
            (const(["x" * (1 << 20)] + [""] * 99), "too long to be real"),
        ],
    )
    def test_a_value_of_another_type(self, make, value, match):
        refused(make([op("const", {"y": value.type}, val=value)]), match)

    def test_a_constant_whose_op_says_otherwise(self, make):
        path = make([op("const", {"y": typed("fp32", 2)}, val=const(np.ones(3, np.float32)))])
        refused(path, "do not fit together")

    @pytest.mark.parametrize(
        ("offset", "match"),
        [
            (0, "lies outside"), (63, "lies outside"), (65, "lies outside"),
            (128, "has no record"), (1 << 20, "lies outside"), (2**63, "lies outside"),
            (2**64 - 64, "lies outside"),
        ],
    )  # fmt: skip
    def test_an_offset_outside_of_the_file(self, weighted, offset, match):
        refused(weighted(offset), match)

    @pytest.mark.parametrize(
        "record",
        [
            (0xDEADBEEF, 1, 12, 2**64 - 1, 0), (0xDEADBEEF, 1, 12, 2**63, 0),
            (0xDEADBEEF, 1, 12, 130, 0), (0xDEADBEEF, 1, 2**64 - 1, 128, 0),
            (0xDEADBEEF, 1, 14, 128, 0), (0xDEADBEEF, 2, 12, 128, 0),
            (0xDEADBEEF, 99, 12, 128, 0), (0, 1, 12, 128, 0), (0xDEADBEEF, 1, 12, 129, 0),
        ],
    )  # fmt: skip
    def test_a_record_that_lies(self, weighted, record):
        path = weighted()
        data = bytearray((path / WEIGHTS).read_bytes()[:140])
        data[64:96] = struct.pack("<IIQQQ", *record)
        (path / WEIGHTS).write_bytes(data)
        refused(path, "blob at byte 64 h")

    @pytest.mark.parametrize(
        "file",
        ["/etc/passwd", "../../../outside", "@model_path/../../../outside", "a\x00b", "", ".",
         "@model_path/weights", "x" * 5000],
    )  # fmt: skip
    def test_a_weight_file_elsewhere(self, weighted, tmp_path, file):
        path = weighted(64, file)
        (tmp_path / "outside").write_bytes((path / WEIGHTS).read_bytes())
        refused(path, "is not in the package as a regular file")


class TestCompressedConstants:
    def lut(self, indices, lut, shape=(2, 3)):
        return op("constexpr_lut_to_dense", {"w": typed("fp32", *shape)}, indices=indices, lut=lut)

    def add(self):
        return op("add", {"y": X}, x="x", y="w")

    def test_an_index_beyond_the_palette(self, make):
        indices = const(np.full((2, 3), 9, np.int32), "uint8")
        palette = const(np.ones((1, 1, 4, 1), np.float32))
        refused(make([self.lut(indices, palette), self.add()]), "constexpr_lut_to_dense|index")

    def test_made_of_something_computed(self, make):
        palette = const(np.ones((1, 1, 4, 1), np.float32))
        refused(make([self.lut("x", palette), self.add()]), "value 'x' is no constant")

    def test_of_another_shape_than_declared(self, make):
        indices = const(np.zeros((2, 3), np.int32), "uint8")
        palette = const(np.ones((1, 1, 4, 1), np.float32))
        path = make([self.lut(indices, palette, (4, 4)), self.add()])
        refused(path, "constexpr_lut_to_dense")

    def test_compressed_over_and_over(self, make):
        """Each uses the one before twice: 2^60 expansions for who does not remember."""
        chain = [op("const", {"w0": X}, val=const(np.ones((2, 3), np.float32)))]
        chain += [
            op("constexpr_sparse_to_dense", {f"w{i + 1}": X}, nonzero_data=f"w{i}", mask=f"w{i}")
            for i in range(60)
        ]
        refused(make([*chain, ADD]), "compressed 5 times over")

    def test_zeros_by_the_terabyte(self, make):
        """iOS 16: packed indices and a shape; the declared type is small, the shape is not."""
        operation = op(
            "constexpr_sparse_to_dense", {"w": X}, nonzero_data=const(np.ones(1, np.float32)),
            mask=const([1], "uint8"), shape=const(np.array([2**20, 2**20], np.int32), "int32"),
        )  # fmt: skip
        refused(make([operation, self.add()]), "constexpr_sparse_to_dense")
