"""A bundle is trusted in nothing: damaged files, names that lead elsewhere, wild manifests."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
import json
import os
from pathlib import Path
from random import Random
import re
import shutil
import sys
import tracemalloc

from _command import ane_book as command
from _command import refused
from _long import long_but
import ane_book
from ane_book.bundle import Bundle, Manifest
from ane_book.errors import AneBookError, InvalidBundle, InvalidInput
from ane_book.runtime import Session
from mlprogram.package.reader import Package
import pytest

#: One layer, so that many can be opened.
SMALL = (("num_hidden_layers", 1),)
MANIFESTS = int(os.environ.get("DAMAGED_MANIFESTS", "15"))


@pytest.fixture
def copy(tiny_bundle, tmp_path) -> Path:
    _, bundle = tiny_bundle("qwen3", SMALL)
    return Path(shutil.copytree(bundle.path, tmp_path / "bundle"))


def use(folder: Path) -> None:
    """All that a bundle is for."""
    bundle = Bundle.open(folder)
    bundle.golden()
    ane_book.load(folder).generate("Hello", max_tokens=2)


def rewrite(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "manifest.json"
    file.write_text(change(file.read_text()))


# --- damage that leaves sizes as they are


def zero(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first byte": lambda data: flip(data, 0),
    "header": lambda data: flip(data, min(20, len(data) - 1)),
    "middle": lambda data: flip(data, len(data) // 2),
    "last byte": lambda data: flip(data, len(data) - 1),
    "zeros": lambda data: zero(data, len(data) // 2),
    "garbage": lambda data: Random(0).randbytes(len(data)),
    "empty": lambda data: b"",
}


def unlike_files(bundle: Bundle) -> list[str]:
    """Every file, but of the packages only those of the first and of the head."""
    packages = (bundle.manifest.packages[0].package, bundle.manifest.head[0].package)
    files = bundle.manifest.files
    kept = [name for name in files if ".mlpackage/" not in name or name.startswith(packages)]
    return [*kept, "manifest.json"]


@pytest.mark.parametrize("damage", long_but(DAMAGES, "header", "middle", "garbage", "empty"))
def test_damage_to_any_file_is_told(copy, damage):
    """One clean error, or a payload that no header tells about; `verify` names the file always."""
    for name in unlike_files(Bundle.open(copy)):
        file = copy / name
        whole = file.read_bytes()
        file.write_bytes(DAMAGES[damage](whole))
        if file.read_bytes() == whole:  # zeros in the place of zeros
            continue
        with pytest.raises(InvalidBundle, match=file.name):
            Bundle.open(copy).verify()
        try:
            session = Session(copy)
            Bundle.open(copy).golden()
        except AneBookError as error:
            assert str(copy) in str(error), (name, error)
        else:
            with suppress(AneBookError):  # numbers that are none, mostly
                session.generate("Hello", max_tokens=2)
        file.write_bytes(whole)
    Bundle.open(copy).verify()
    use(copy)


def test_the_command_verifies(copy):
    done = command("inspect", "--checksums", copy)
    count = len(Bundle.open(copy).manifest.files)
    assert f"all {count} files are as they were written" in done.stdout
    weights = next(copy.rglob("weight.bin"))
    weights.write_bytes(flip(weights.read_bytes(), 200))
    line = refused("inspect", "--checksums", copy)
    assert weights.relative_to(copy).as_posix() in line and "convert the model again" in line
    assert "is not a .mlpackage" in refused("inspect", "--checksums", weights.parent)


def test_a_manifest_that_says_something_else_is_told(copy):
    """Of what it says all is in order, but it is not what was written."""
    fields = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(fields | {"name": "another"}))
    with pytest.raises(InvalidBundle, match=r"not as it was written: manifest\.json"):
        Bundle.open(copy).verify()


# --- names that lead elsewhere


FIELDS = [
    ("embedding", "file"), ("golden",), ("tokenizer", "file"),
    ("packages", 0, "package"), ("packages", -1, "package"),
]  # fmt: skip


def value_at(fields, path: tuple):
    for key in path:
        fields = fields[key]
    return fields


def used_files(folder: Path) -> list[str]:
    """What the manifest's fields name, packages by their folder."""
    fields = json.loads((folder / "manifest.json").read_text())
    return [name for path in FIELDS if (name := value_at(fields, path))]


OUTSIDE = [*zip(FIELDS, cycle(["../", "x/../../", "{outside}/"]), strict=False)]


@pytest.mark.parametrize(("path", "prefix"), OUTSIDE, ids=str)
def test_no_field_leads_outside(tiny_bundle, tmp_path, path, prefix):
    """What it names is really there, outside, and its files are listed with their true sizes."""
    _, bundle = tiny_bundle("qwen3", SMALL)
    copy = Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
    (copy / "x").mkdir()
    fields = json.loads((copy / "manifest.json").read_text())
    name = value_at(fields, path)
    shutil.move(copy / name, tmp_path / name)
    other = prefix.format(outside=tmp_path) + name
    value_at(fields, path[:-1])[path[-1]] = other
    for part in ("files", "sha256"):
        items = fields.get(part, {}).items()
        fields[part] = {other + key.removeprefix(name) if key.startswith(name) else key: value
                        for key, value in items}  # fmt: skip
    (copy / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidBundle, match="is not a path below the bundle's folder"):
        Session(copy)


@pytest.mark.parametrize("name", ["", ".", "a//b", "a\\b", "C:b", "a\x1b[31m", "a" * 300])
def test_names_that_are_none(copy, name):
    whole = json.loads((copy / "manifest.json").read_text())
    for field in ("files", "sha256", "embedding"):
        own = whole[field]
        changed = own | {"file": name} if field == "embedding" else {name: own["embedding.npy"]}
        (copy / "manifest.json").write_text(json.dumps(whole | {field: changed}))
        with pytest.raises(InvalidBundle, match="is not a path below") as caught:
            Bundle.open(copy)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_are_not_followed(copy, tmp_path):
    """Of every file, and of the folders within a package."""
    inner = [path.relative_to(copy).as_posix() for path in copy.rglob("Data")][:2]
    for name in [*used_files(copy), *inner, "manifest.json"]:
        shutil.move(copy / name, tmp_path / "elsewhere")
        (copy / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InvalidBundle, match="regular file"):
            Bundle.open(copy)
        (copy / name).unlink()
        shutil.move(tmp_path / "elsewhere", copy / name)
    use(copy)


@pytest.mark.skipif(os.name == "nt", reason="POSIX's")
def test_nobody_waits_for_a_pipe(copy):
    for name in ("manifest.json", "tokenizer.json", "embedding.npy"):
        (copy / name).rename(copy / "aside")
        os.mkfifo(copy / name)
        with pytest.raises(InvalidBundle, match="regular file"):
            Bundle.open(copy)
        (copy / name).unlink()
        (copy / "aside").rename(copy / name)


# --- wild manifests


VALUES = [
    None, True, -1, 0, 1, 2, 10**6, 10**12, 10**30, -(2**63), 0.5, 1e308, "", "x", "../x", "/",
    "\x1b[31m\x00", "é" * 50_000, [], [1], {}, {"a": 1}, [[]] * 1000, [0, 10**12],
]  # fmt: skip


def places(value, path=()) -> Iterator[tuple]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def damaged(text: str, rng: Random) -> bytes:
    """A manifest with one to three things wrong in it."""
    kind, fields = rng.randrange(8), json.loads(text)
    if kind == 0:
        at = rng.randrange(len(text))
        return text[:at].encode() + rng.choice([b"", b"\xff", b"{", b'"', b"9" * 5000])
    if kind == 1:
        return ("[" * 100_000 if rng.random() < 0.5 else '{"a":' * 50_000).encode()
    if kind == 2:  # twice the same key, the second with another value
        return text.replace("{", f'{{"host": {json.dumps(rng.choice(VALUES))}, ', 1).encode()
    for _ in range(rng.choice([1, 1, 2, 3])):
        *path, last = rng.choice([place for place in places(fields) if place])
        inner = fields
        for key in path:
            inner = inner[key]
        action = rng.randrange(6)
        if action == 0:
            del inner[last]
        elif action == 1 and isinstance(inner, dict):
            inner[rng.choice(["x", "", "../y", "\x1b[31m", "z" * 100_000])] = rng.choice(VALUES)
        elif action == 2 and isinstance(inner[last], int):
            inner[last] += rng.choice([-1, 1, 10**9])
        else:
            inner[last] = rng.choice(VALUES)
    return json.dumps(fields).encode()


def test_wild_manifests_are_refused_in_one_sentence(copy):
    """Nothing but our errors, and little memory, whatever the manifest says.

    DAMAGED_MANIFESTS=500 makes it the long run.
    """
    text, counts = (copy / "manifest.json").read_text(), {"refused": 0, "opened": 0}
    use(copy)  # what is imported late is not counted
    tracemalloc.start()
    for seed in range(MANIFESTS):
        (copy / "manifest.json").write_bytes(damaged(text, Random(seed)))
        tracemalloc.reset_peak()
        before, outcome = tracemalloc.get_traced_memory()[0], "opened"
        try:
            Session(copy)
        except AneBookError as error:
            outcome, said = "refused", str(error)
            assert said.isprintable() and len(said) < 1000, (seed, said)
        counts[outcome] += 1
        used = tracemalloc.get_traced_memory()[1] - before
        assert used < 32_000_000, f"manifest {seed} took {used:,} bytes"
    tracemalloc.stop()
    print(counts, file=sys.stderr)
    assert counts["refused"] > MANIFESTS * 0.7


def functions(manifest: dict) -> list[dict]:
    return [f for part in manifest["packages"] for f in part["functions"].values()]


def first(manifest: dict) -> dict:
    """A cache, or what goes into the first program."""
    function = manifest["packages"][0]["functions"]["decode"]
    return next(iter((function["states"] or function["inputs"]).values()))


def wider(manifest: dict, slots: int) -> None:
    """A context that no machine has, told alike wherever it is told."""
    manifest["context"] = slots
    for function in functions(manifest):
        function["slots"] = function["slots"] and slots
        for name, type_ in function["inputs"].items():
            if name == "mask":
                type_["shape"][3] = slots + function["tokens"]
            if f"new_{name}" in function["outputs"]:
                type_["shape"][2] = slots
        for type_ in function["states"].values():
            type_["shape"][2] = slots


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(context=10**12), "do not fit|of memory are here"),
        (lambda m: wider(m, 2**33), "takes .* GB, and .* of memory are here"),
        (lambda m: first(m).update(shape=[10**400, 1, 128, 16]), "shape.0: .*less than"),
        (lambda m: m["embedding"].update(shape=[10**7, 64]), "more than its file holds"),
        (lambda m: m["embedding"].update(shape=[257, 2**40]), "more than its file holds"),
        (lambda m: m["host"]["rotary"]["rope"].update(head_dim=10**12), "head_dim"),
        (lambda m: m["host"]["rotary"]["rope"].update(rotary_dim=2**20), "dimensions are rotated"),
        (lambda m: m["host"]["rotary"]["rope"].update(attention_scale=1e12), "attention_scale"),
        (lambda m: m["host"].update(embedding_scale=1e308), "embedding_scale"),
        (lambda m: m["host"].update(embedding_scale=-1.0), "embedding_scale"),
        (lambda m: m["files"].update({"embedding.npy": 10**15}), "embedding.npy has .* bytes"),
    ],
)
def test_numbers_are_held_to_the_files_before_memory_is_taken(copy, change, message):
    fields = json.loads((copy / "manifest.json").read_text())
    change(fields)
    (copy / "manifest.json").write_text(json.dumps(fields))
    tracemalloc.start()
    with pytest.raises(InvalidBundle, match=message):
        Session(copy)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 16_000_000


@pytest.mark.parametrize("factor", ["inf", "1e308"])
def test_what_is_for_the_record_is_refused_cleanly(copy, factor):
    """Running needs no model's numbers; whoever asks for them gets them or one error."""
    rewrite(copy, lambda text: re.sub('("partial_rotary_factor": ?)1.0', rf'\g<1>"{factor}"', text))
    with pytest.raises(InvalidBundle, match="model: .*partial_rotary_factor"):
        _ = Bundle.open(copy).config


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("ane-book bundle 1", "ane-book convert MODEL --out {} --force"),
        ("other", "ane-book convert MODEL --out {} --force"),
        ("ane-book bundle 14", "'ane-book bundle 14', of a newer .*update it, .*convert MODEL"),
    ],
)
def test_another_version_says_what_to_do(copy, version, message):
    rewrite(copy, lambda text: text.replace("ane-book bundle 6", version))
    with pytest.raises(InvalidBundle, match=message.format(copy)):
        Bundle.open(copy)


def test_the_schema_in_the_documents_is_the_manifests():
    """`make schema` writes it; a program in another language reads a bundle by it."""
    file = Path(__file__).parents[2] / "research" / "manifest.schema.json"
    assert json.loads(file.read_text()) == Manifest.model_json_schema()


def test_a_manifest_says_what_its_packages_are(copy):
    """Types as the packages declare them; every input is the host's, by name, or a cache."""
    manifest = Bundle.open(copy).manifest
    for part in manifest.packages:
        package = Package(copy / part.package)
        for name, function in part.functions.items():
            for kind in ("inputs", "states", "outputs"):
                declared = getattr(package.functions[part.called(name)], kind)
                assert {k: (t.dtype, t.shape) for k, t in declared.items()} == {
                    k: (t.dtype, t.shape) for k, t in getattr(function, kind).items()
                }


# --- options of a bundle that is there


class TestHeldTo:
    @pytest.fixture
    def bundle(self, tiny_bundle) -> Bundle:
        return tiny_bundle("qwen3", SMALL)[1]

    def test_what_it_was_made_with(self, bundle):
        made = {"shard_limit": "1GB", "kv": "state", "context": 32, "quant": "none", "prefill": 8}
        assert ane_book.load(bundle.path, **made).bundle.path == bundle.path
        assert ane_book.load(bundle.path, shard_limit=10**9, progress=print, quant_head=None)

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"shard_limit": "2GB"}, "shard_limit 1000000000, not 2000000000"),
            ({"context": 64}, "context 32, not 64"),
            ({"quant": "int8"}, "quant none, not int8"),
            ({"partition": "layers", "kv": "host"}, "kv state, not host"),
            ({"source": "random"}, "source goes with a model's name"),
            ({"shard_limit": "much"}, "is not a size"),
        ],
        ids=str,
    )
    def test_what_it_was_not(self, bundle, option, message):
        with pytest.raises(InvalidInput, match=message):
            ane_book.load(bundle.path, **option)

    def test_what_is_no_option(self, bundle):
        with pytest.raises(TypeError, match="'contxt'; there are: argmax_output, context, "):
            ane_book.load(bundle.path, contxt=3)
