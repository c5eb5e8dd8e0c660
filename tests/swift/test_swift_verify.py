"""Bytes that changed in a bundle: noticed in Swift by size when it opens, by hash in `verify`."""

from pathlib import Path
import shutil

from ane_book.bundle import Bundle
from ane_book.bundle.manifest import FORMAT
import pytest
from swift_tables import add_tables
from test_swift_session import swift


@pytest.fixture
def copied(tiny_bundle, tmp_path):
    bundle = tiny_bundle("llama", kv="state")[1]
    return add_tables(Bundle.open(shutil.copytree(bundle.path, tmp_path / "b")))


def test_a_changed_byte_is_noticed_in_every_file(test_host, copied):
    with swift(test_host, copied) as ask:
        folder = str(copied.path)
        assert ask(verify=folder) == {"name": folder}
        for name in copied.manifest.files:
            file = copied.path / name
            if not (whole := file.read_bytes()):
                continue
            file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
            error = ask(verify=folder)["error"]
            assert name in error or "tokenizer.bin" in error
            file.write_bytes(whole[:-1])
            opened = ask(open=folder)["error"]
            assert f"{name} has {len(whole) - 1} bytes" in opened
            assert "copy or download the bundle again" in opened
            file.write_bytes(whole)
        (copied.path / "golden.npz").unlink()
        assert ask(verify=folder) == {"name": folder}


def test_the_format_that_an_app_takes_is_pythons():
    root = Path(__file__).parents[2]
    manifest = (root / "swift/Sources/AneBook/Bundle/Manifest.swift").read_text()
    assert f'public static let format = "{FORMAT}"' in manifest
    assert f"`Manifest.format`, now `{FORMAT}`" in (root / "book/shipping.md").read_text()
