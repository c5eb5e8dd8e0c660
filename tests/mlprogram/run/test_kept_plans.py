"""A plan that is kept gives what a plan that is made gives, to the bit, and no other is ever run:
see `run/kept.py`."""

from concurrent.futures import ThreadPoolExecutor
import errno
import hashlib
import mmap
import os
from pathlib import Path
import random
import shutil
import stat
import subprocess
import sys
import time

from _long import long_but
from _package import const, edit, op, typed, write
from _random_forms import RandomProgram
from mlprogram import MLProgram, sealed
from mlprogram.errors import InvalidPackage
from mlprogram.kernels import compiled, library, native
from mlprogram.machine import cache_folder
from mlprogram.package.reader import Package
from mlprogram.pipe import Programs
from mlprogram.run import keep, kept
import numpy as np
import pytest
from random_programs import equal, outcome
import torch

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

ROWS = typed("fp16", 1, 64, 1, 4)
WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The cache's folder, with nothing in it but the compiled kernels."""
    kernels = cache_folder() / "kernels" / f"{compiled.library()[0].made_of}.so"
    monkeypatch.setenv("MLPROGRAM_CACHE", str(tmp_path / "cache"))
    folder = sealed.private_folder()
    if kernels.exists():
        shutil.copy(kernels, folder)
    return folder


@pytest.fixture
def path(tmp_path) -> Path:
    """A package whose weight is in its file, with a bias that the kernels read widened."""
    from _package import blob

    matrix, bias = typed("fp16", 64, 64, 1, 1), np.linspace(-1, 1, 64, dtype=np.float16)
    steps = [
        op("const", {"w": matrix}, val=blob(matrix, 64)),
        op("const", {"b": typed("fp16", 64)}, val=const(bias)),
        op("conv", {"c": ROWS}, x="x", weight="w", bias="b"),
        op("silu", {"s": ROWS}, x="c"),
        op("add", {"y": ROWS}, x="s", y="x"),
    ]
    return write(tmp_path / "p.mlpackage", steps, ["y"], {"x": ROWS}, [(1, WEIGHT.tobytes())])


def plans(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.plan"))


def answer(path: Path) -> tuple[bool, np.ndarray]:
    """Whether the plan was kept, and what the program makes of some input."""
    program = MLProgram(path)
    return program._kept is not None, program.predict(program.random_inputs())["y"]


def compare(path: Path, calls, precision: str = "fp16") -> bool:
    """A program that is opened a second time equals the first one, outputs, errors and states;
    returns whether its plan was kept."""
    MLProgram(path, precision=precision).prepare()
    made = MLProgram(Package(path), precision=precision)  # of what is in memory nothing is kept
    kept = MLProgram(path, precision=precision)
    assert made._kept is None
    if kept._kept is None:
        return False
    ours, theirs = kept.make_state(), made.make_state()
    for given in calls(made):
        found, right = outcome(kept, given, ours), outcome(made, given, theirs)
        assert type(found) is type(right)
        if isinstance(right, str):
            assert found == right
        else:
            assert found.keys() == right.keys()
            assert all(equal(found[name], right[name]) for name in right)
    assert all(equal(ours.read_state(n), theirs.read_state(n)) for n in made.states)
    return True


# --- the same bits --------------------------------------------------------------------------------


class Compiled(RandomProgram):
    """A random program, mostly of what runs in C."""

    def add(self, kind, dtype, shape, /, **inputs):
        if kind in ("relu", "silu") or (kind in ("maximum", "minimum") and dtype != "int32"):
            kind, inputs = "add", {"x": inputs["x"], "y": inputs.get("y", inputs["x"])}
        return super().add(kind, dtype, shape, **inputs)

    def reduce(self, dtype):
        self.softmax(dtype)

    def matmul(self, dtype):
        self.product(dtype)

    def remember(self, dtype):
        self.gathered(dtype)


@pytest.mark.parametrize("part", long_but(range(10), 0))
def test_random_programs(tmp_path, part):
    """With inputs that are none and places that are not there, where calls fail in C."""
    kept = 0
    for seed in range(60 * part, 60 * part + 60):
        made = Compiled(seed)
        calls = [made.arrays(0), made.arrays(1), made.arrays(2, wild=True), made.arrays(0)]
        path, precision = made.save(tmp_path / f"{seed}.mlpackage"), ["fp16", "fp32"][seed % 2]
        kept += compare(path, lambda _, calls=calls: calls, precision)
    assert kept > 8


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("tokens", [1, 8])
def test_a_decoder(decoder_of, tokens, precision):
    assert compare(decoder_of(tokens), lambda p: map(p.random_inputs, range(4)), precision)


def test_inputs_of_any_dtype_and_form(path):
    """Rounded as torch rounds, and copied where they lie otherwise."""
    x = np.random.default_rng(1).standard_normal((1, 64, 1, 4)) * 300
    wide = [x, x.astype(np.float32), x.astype(">f4"), x.astype(np.int64), x > 0]
    apart = np.asfortranarray(x.astype(np.float16))
    bytes_ = np.frombuffer(b"\0" + x.astype(np.float16).tobytes(), np.uint8)[1:]
    odd = np.ndarray(x.shape, np.float16, bytes_)  # at an odd address, and not to be written to
    assert compare(path, lambda _: [{"x": each} for each in [*wide, apart, odd, [1], None]])


def test_what_is_an_output_twice_is_copied(tmp_path):
    steps = [
        op("add", {"a": ROWS}, x="x", y="x"),
        op("mul", {"b": ROWS}, x="a", y="x"),
        op("reshape", {"c": typed("fp16", 64, 4)}, x="b", shape=const([64, 4])),
    ]
    path = write(tmp_path / "p.mlpackage", steps, ["b", "c"], {"x": ROWS})
    assert compare(path, lambda p: [p.random_inputs()])
    program = MLProgram(path)
    found = program.predict(program.random_inputs())
    assert not np.shares_memory(found["b"], found["c"])


WITHOUT_TORCH = """
import sys, numpy as np, mlprogram
program = mlprogram.open(sys.argv[1])
state = program.make_state() if program.states else None
found = [program.predict(program.random_inputs(seed), state) for seed in range(3)]
found += [{n: state.read_state(n) for n in program.states}] if state else []
np.savez(sys.argv[2], *[x for each in found for x in each.values()])
print(sorted({"torch", "google.protobuf", "coremltools"} & sys.modules.keys()))
"""


def test_another_process_needs_no_torch(tmp_path, decoder_of, folder):
    """The first one makes the plan; the next ones differ in how they order sets."""
    path, found = decoder_of(1), []
    for seed in ("1", "2", "3"):
        out = tmp_path / f"{seed}.npz"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
        said = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, str(path), str(out)],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert said == ("['google.protobuf', 'torch']\n" if seed == "1" else "[]\n")
        found.append([*np.load(out).values()])
    assert all(map(equal, found[0], found[1])) and all(map(equal, found[0], found[2]))
    (kept,) = plans(folder)
    kept.unlink()
    MLProgram(path).prepare()
    assert plans(folder) == [kept]  # named by its content, which is the same


PIPED = """
import sys
from mlprogram.pipe import Programs
print(Programs().answer({"load": sys.argv[1], "function": sys.argv[2]}, b"")[0])
print("torch" in sys.modules)
"""


def test_a_host_in_another_language_needs_none_either(path, folder):
    MLProgram(path, "main").prepare()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PIPED, str(path), "main"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "{'function': 0}\nFalse\n"


THREADS = "from mlprogram.kernels.threads import threads; own = threads(); import torch"


@pytest.mark.parametrize("asked", [{}, {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "none"}])
def test_there_are_as_many_threads_as_torch_would_have(asked):
    own = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment = own | {"PYTHONPATH": os.pathsep.join(sys.path)} | asked
    code = f"{THREADS}; print(own, torch.get_num_threads(), threads())"
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len({*said}) == 1, said


# --- what is not kept -----------------------------------------------------------------------------


def test_a_plan_that_needs_torch_is_not_kept(tmp_path, folder):
    steps = [op("relu", {"y": ROWS}, x="x")]
    assert not compare(write(tmp_path / "r.mlpackage", steps, ["y"], {"x": ROWS}), lambda _: [])
    open_ = typed("fp16", None, 4)
    pair = [op("add", {"a": open_}, x="x", y="x"), op("mul", {"y": open_}, x="a", y="x")]
    path = write(tmp_path / "o.mlpackage", pair, ["y"], {"x": open_})
    assert not compare(path, lambda _: []) and plans(folder) == []


def test_options_have_plans_of_their_own(path, folder):
    answer(path)
    for options in (
        {"precision": "fp32"}, {"semantics": "reported"}, {"function_name": "main"},
        {"optimize": False}, {"without": ["runner"]}, {"precision": "ane"},
    ):  # fmt: skip
        program = MLProgram(path, **options)
        assert program._kept is None
        program.prepare()
        own = options.get("precision") == "fp32" or {*options} & {"semantics", "function_name"}
        assert (MLProgram(path, **options)._kept is not None) == bool(own)
    assert len(plans(folder)) == 4


@pytest.mark.parametrize("limit", ["MOST", "COUNT"])
def test_no_more_than_some_are_kept(path, folder, monkeypatch, limit):
    """Those used last: opening one is use."""
    answer(path)
    most = {"MOST": 5 * plans(folder)[0].stat().st_size // 2, "COUNT": 2}
    monkeypatch.setattr(keep, limit, most[limit])
    for precision, name in (("fp32", None), ("fp16", None), ("fp32", "main")):
        MLProgram(path, name, precision).prepare()
        assert len(plans(folder)) == 2
    assert MLProgram(path)._kept and not MLProgram(path, precision="fp32")._kept


def test_plans_of_a_clock_that_went_back_go_first(path, folder, monkeypatch):
    monkeypatch.setattr(keep, "COUNT", 2)
    for i in range(3):
        (folder / f"{i}.plan").touch()
        os.utime(folder / f"{i}.plan", (2**32, 2**32))
    MLProgram(path).prepare()
    MLProgram(path, precision="fp32").prepare()
    assert MLProgram(path)._kept and MLProgram(path, precision="fp32")._kept


def test_what_a_killed_writer_left_is_deleted_after_a_day(path, folder):
    old, new = folder / "0-1.plan.2.part", folder / "0-1.plan.3.part"
    for part, age in ((old, 25 * 3600), (new, 23 * 3600)):
        part.touch()
        os.utime(part, (time.time() - age,) * 2)
    answer(path)
    assert new.exists() and not old.exists()


# --- what is never run ----------------------------------------------------------------------------


def test_200_damages(path, folder):
    """Bytes that are changed, cut off, put in or exchanged; each time the plan is made anew."""
    _, right = answer(path)
    (file,) = plans(folder)
    content, generator = file.read_bytes(), random.Random(0)
    for i in range(200):
        at, end = sorted(generator.sample(range(len(content)), 2))
        spoilt = bytearray(content)
        match i % 5:
            case 0:
                spoilt[at] ^= 1 << generator.randrange(8)
            case 1:
                del spoilt[at:]
            case 2:
                del spoilt[at:end]
            case 3:
                spoilt[at:at] = generator.randbytes(generator.randrange(1, 99))
            case 4:
                spoilt[at:end] = generator.randbytes(end - at)
        file.write_bytes(spoilt)
        if i % 2:  # sealed like ours, by who knows how
            name = f"{file.name.split('-')[0]}-{hashlib.sha256(spoilt).hexdigest()}.plan"
            sealed = file.rename(file.with_name(name)) if i % 20 == 1 else None
            if sealed and b"{" not in spoilt[:1]:
                assert answer(path)[0] is False
        kept, found = answer(path)
        assert kept is False and equal(found, right), i
        for one in plans(folder):
            one.unlink() if one != file else None
        assert file.read_bytes() == content


@pytest.mark.parametrize("how", ["another user's", "a link", "a pipe", 0o620, 0o602, 0o666])
def test_a_file_that_others_could_have_written(path, folder, tmp_path, how):
    _, right = answer(path)
    (file,) = plans(folder)
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(file, 54321, 54321)
    elif how == "a link":
        file.symlink_to(file.rename(tmp_path / "elsewhere"))
    elif how == "a pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        file.chmod(how)
    kept, found = answer(path)
    assert not kept and equal(found, right)
    assert answer(path)[0] and stat.S_IMODE(file.lstat().st_mode) == 0o600
    folder.chmod(0o777)
    assert not answer(path)[0]


def test_a_weight_file_that_changed(path, folder):
    """Of the same length, and with the times that it had."""
    _, before = answer(path)
    (file,) = path.rglob("weight.bin")
    times, content = file.stat(), bytearray(file.read_bytes())
    content[128:] = (-WEIGHT).tobytes()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    kept, found = answer(path)
    assert not kept and not equal(found, before)
    assert answer(path)[0] and len(plans(folder)) == 1  # the old one is gone


def test_a_program_that_changed(path, folder):
    program = MLProgram(path)
    program.prepare()
    kept = MLProgram(path)
    edit(path, lambda model: setattr(model, "specificationVersion", 8))
    assert MLProgram(path)._kept is None
    assert kept.predict(kept.random_inputs())  # as it was when it was opened
    with pytest.raises(InvalidPackage, match="changed since it was opened"):
        _ = kept.package


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("what", ["weights", "program"])
def test_functions_of_a_package_that_changed(path, what, again):
    """The one that is open goes on, and no other is mixed with it, whether kept or not."""

    def copy(model):
        model.mlProgram.functions["other"].CopyFrom(model.mlProgram.functions["main"])

    edit(path, copy)
    live = MLProgram(path, "main")
    live.prepare()
    MLProgram(path, "other").prepare()
    kept, given = MLProgram(path, "main"), live.random_inputs()
    assert kept._kept and MLProgram(path, "other")._kept
    before, host = live.predict(given)["y"], Programs()
    host.answer({"load": str(path), "function": "main"}, b"")
    if what == "weights":
        (file,) = path.rglob("weight.bin")
        new = file.with_suffix(".new")
        new.write_bytes(file.read_bytes()[:128] + (-WEIGHT).tobytes())
        new.replace(file)
    else:
        edit(path, lambda model: setattr(model, "specificationVersion", 8))
    if again:
        MLProgram(path, "other").prepare()
    assert equal(kept.predict(given)["y"], before) and equal(live.predict(given)["y"], before)
    asked = {"load": str(path), "function": "other"}
    others = [lambda: kept.function("other"), kept.plain, lambda: kept.package]
    others.append(lambda: host.answer(asked, b""))
    if again:
        others.append(lambda: live.function("other"))
    else:
        assert equal(live.function("other").predict(given)["y"], before)
    for other in others:
        with pytest.raises(InvalidPackage, match="changed since it was opened; open it again"):
            other()


def test_another_processor_library_or_torch(path, monkeypatch):
    answer(path)
    assert MLProgram(path)._kept
    with monkeypatch.context() as patch:
        patch.setattr(compiled.library()[0], "made_of", "the kernels of another processor")
        assert MLProgram(path)._kept is None
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "default")
        assert MLProgram(path)._kept is None
    with monkeypatch.context() as patch:
        patch.setattr(np, "__version__", "3.0")
        assert MLProgram(path)._kept is None
    code = kept._code()
    assert Path(torch.__file__) in [Path(file) for file, *_ in code]
    assert any(Path(file) == Path(keep.__file__) for file, *_ in code)
    (file, size, time), *rest = code
    for other in ((file, size + 1, time), (file, size, time + 1)):
        with monkeypatch.context() as patch:
            patch.setattr(kept, "_code", lambda other=other: [other, *rest])
            assert MLProgram(path)._kept is None
    assert MLProgram(path)._kept


def test_the_kernels_are_named_by_the_processor(tmp_path):
    """By what the compiler says of its instructions."""
    keys = {library._Build(["cc", flag], ()).key for flag in ("-O2", "-O1")}
    assert len(keys) == 2


# --- several at once ------------------------------------------------------------------------------


def test_writers_and_readers_at_once(path, folder):
    right = answer(path)[1]
    (file,) = plans(folder)

    def use(i: int) -> bool:
        if i % 5 == 0:
            file.unlink(missing_ok=True)
        return equal(answer(path)[1], right)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(60)))
    answer(path)
    assert plans(folder) == [file] and not [*folder.glob("*.part")]


def test_two_processes_at_once(path, folder):
    code = "import sys, mlprogram; mlprogram.open(sys.argv[1]).prepare()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(path)]
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert len(plans(folder)) == 1 and answer(path)[0]


def refusing(error):
    def refuse(*_, **__):
        raise error

    return refuse


def test_a_cache_that_is_read_only(path, folder, monkeypatch):
    """Its plans are used, past one that is damaged and can't be deleted."""
    answer(path)
    (file,) = plans(folder)
    damaged = file.with_name(f"{file.name.split('-')[0]}-{'0' * 64}.plan")
    damaged.write_bytes(b"{}")
    for module, name in ((os, "utime"), (Path, "unlink")):
        monkeypatch.setattr(module, name, refusing(OSError(errno.EROFS, "Read-only file system")))
    assert answer(path)[0] and damaged.exists()


@pytest.mark.parametrize(
    "module, name, little",
    [
        (kept, "memory_bytes", lambda: 1),
        (kept, "new", refusing(MemoryError())),
        (mmap, "mmap", refusing(OSError(errno.ENOMEM, "Cannot allocate memory"))),
    ],
)
def test_too_little_memory_deletes_no_plan(path, folder, monkeypatch, module, name, little):
    """Another process may have more."""
    answer(path)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, little)
        assert kept.find(path, None, "fp16", None) is None
    assert len(plans(folder)) == 1 and answer(path)[0]


def test_no_room_is_no_failure(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPROGRAM_CACHE", os.devnull)
    assert not answer(path)[0] and not answer(path)[0]
