"""Bytes that changed in a bundle: noticed in Swift by size when it opens, by hash in `verify`."""

import json
from pathlib import Path
import shutil

from ane_book.bundle import Bundle, seal
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


#: Fields that no host reads, with what Python's JSON has in more than one form.
MORE = {
    "é": "\ud83d\ude00 \u2028/",
    "a b": [],
    "a": {},
    'a"\\': 'x", "y": [1]',
    "a!": [1e-05, 0.1, 1e300, -0.0, 2**60, True, None, [{}, [""]]],
    "b": {"z": 1, "y": {"x": [{"w": 2, "v": 3}]}},
}


def test_the_manifest_is_held_to_its_seal(test_host, copied):
    file, fields = (
        copied.path / "manifest.json",
        json.loads(copied.path.joinpath("manifest.json").read_text()),
    )
    sealed = fields | {"more": MORE}
    sealed["seal"] = seal(sealed)
    with swift(test_host, copied) as ask:

        def verified(written: dict, **form) -> bool:
            file.write_text(json.dumps(written, **form))
            return "error" not in ask(verify=str(copied.path))

        assert verified(fields, indent=2) and verified(sealed, indent=2) and verified(sealed)
        assert verified(sealed, sort_keys=True, separators=(",", ":"))
        for change in ({"name": "other"}, {"more": MORE | {"a b": [0]}}, {"less": 1}, {"seal": ""}):
            assert not verified(sealed | change, indent=2), change
        assert not verified({name: own for name, own in sealed.items() if name != "seal"})
        file.write_text(json.dumps(fields)[:-1])
        assert "manifest.json" in ask(verify=str(copied.path))["error"]


def test_the_format_that_an_app_takes_is_pythons():
    root = Path(__file__).parents[2]
    manifest = (root / "swift/Sources/AneBook/Bundle/Manifest.swift").read_text()
    assert f'public static let format = "{FORMAT}"' in manifest
    assert f"`Manifest.format`, now `{FORMAT}`" in (root / "book/shipping.md").read_text()
