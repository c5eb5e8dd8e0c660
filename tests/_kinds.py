"""Kinds of machine that are made of this one, for tests/machines.py.

A kind is a context: while it is open, commands that are called through its way run as on such a
machine. It raises NotTried where this machine cannot make one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
import os
from pathlib import Path
import platform
import random
import re
import subprocess
import sys

from mlprogram import machine

OWN = "{}.{}".format(*sys.version_info)
OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != OWN]
#: A user whom the system's list does not have, as containers are often run.
STRANGER = 54321
COMPILER = re.compile(r"(.*-)?(cc|c89|c99|tcc|gcc|clang|cpp|[cg]\+\+|clang\+\+)(-[\d.]+)?")
#: Of the order of tests; the record has it, so that a failure can be repeated.
SEED = random.randrange(10**6)
GROUPS = Path("/sys/fs/cgroup")


class NotTried(Exception):
    """This machine cannot make that kind; str: why."""


@dataclass(frozen=True)
class Way:
    """How commands are called on a kind of machine."""

    prefix: tuple[str, ...] = ()  # what comes before the command
    environment: dict[str, str | None] = field(default_factory=dict)  # None takes a variable away
    pytest: str = ""  # more flags for it
    python: str = sys._base_executable  # that the environment is made with
    owner: int | None = None  # the user who runs all, where it is not this one
    beside: bool = False  # whether the same runs in another clone at the same time


@dataclass(frozen=True)
class Kind:
    words: str
    make: Callable[[Path], AbstractContextManager[Way]]
    clone: str  # kinds of one name share a clone, and "usual" is set up as on this machine


KINDS: dict[str, Kind] = {}


def kind(name: str, words: str, clone: str = "usual"):
    """Enter a generator of a way, given a folder for what it needs, as a kind of machine."""

    def enter(make: Callable[[Path], Iterator[Way]]):
        KINDS[name] = Kind(words, contextmanager(make), clone)
        return make

    return enter


@kind("as-it-is", "this machine as it is")
def as_it_is(folder: Path) -> Iterator[Way]:
    yield Way()


@kind("load", "four busy processes a core beside it")
def load(folder: Path) -> Iterator[Way]:
    busy = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(busy) for _ in range(4 * machine.cores())]
    try:
        yield Way()
    finally:
        for process in processes:
            process.kill()
            process.wait()


@kind("one-core", "one core")
def one_core(folder: Path) -> Iterator[Way]:
    if not hasattr(os, "sched_getaffinity"):
        raise NotTried("this system holds no process to a core")
    yield Way(("taskset", "-c", str(min(os.sched_getaffinity(0)))))


@kind("memory", "4 GB of memory, swap included")
def memory(folder: Path) -> Iterator[Way]:
    """A control group: a limit on each process would be none on all of them together."""
    old = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if old else GROUPS) / f"machines-{os.getpid()}"
    names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    names = names if old else ["memory.max", "memory.swap.max"]
    try:
        group.mkdir()
        limits = [group / name for name in names]
        limits[0].write_text(str(4 << 30))
        if limits[1].exists():  # where there is swap; the old one counts both together
            limits[1].write_text(str(4 << 30 if old else 0))
    except OSError as error:
        raise NotTried(f"no control group can be made here ({error.strerror})") from None
    try:
        yield Way(("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)))
    finally:
        group.rmdir()


@kind("no-network", "no network after set-up")
def no_network(folder: Path) -> Iterator[Way]:
    """What runs here talks to itself, so the loopback stays."""
    alone = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
    yield Way((*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"))


@kind("no-compiler", "no C compiler")
def no_compiler(folder: Path) -> Iterator[Way]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for place in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).iterdir():
            link = programs / program.name
            if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    yield Way(environment={"PATH": str(programs)})


def _instructions(torch: str, onednn: str, mkl: str, level: str) -> Way:
    """For torch, the libraries that it multiplies with, and our kernels, by their compiler."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise NotTried(f"this processor is {platform.machine()}")
    told = {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn}
    return Way(
        environment=told | {"MKL_ENABLE_INSTRUCTIONS": mkl, "CC": f"cc -march={level}"},
    )


@kind("avx2", "AVX2, no AVX-512")
def avx2(folder: Path) -> Iterator[Way]:
    yield _instructions("avx2", "AVX2", "AVX2", "x86-64-v3")


@kind("x86-64", "plain x86-64")
def x86_64(folder: Path) -> Iterator[Way]:
    yield _instructions("default", "SSE41", "SSE4_2", "x86-64")


def interpreter(version: str, prefix: tuple[str, ...] = ()) -> str:
    """An interpreter that can make environments, and runs through the prefix."""
    name = f"python{version}"
    own = [sys._base_executable] if version == OWN else []
    found = [str(Path(place) / name) for place in os.environ["PATH"].split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    # A shim of pyenv refuses where this version was not chosen; what it stands for does not.
    found += map(str, pyenv.glob(f"versions/{version}*/bin/{name}"))
    asked = "import ensurepip, venv, sys; print('{}.{}'.format(*sys.version_info))"
    for python in filter(os.path.exists, own + found):
        command = [*prefix, python, "-c", asked]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if (done.returncode, done.stdout.strip()) == (0, version):
            return python
    raise NotTried(f"there is no {name} with venv here")


def _other_python(version: str) -> None:
    @kind(f"python{version}", f"Python {version}, beside {OWN}", f"clone of {version}")
    def other(folder: Path) -> Iterator[Way]:
        yield Way(python=interpreter(version))


for version in OTHERS:
    _other_python(version)


@kind("path", "a path with spaces and an umlaut", "der Köder im Fluß")
def path(folder: Path) -> Iterator[Way]:
    yield Way()


@kind("lang-c", "LANG=C", "clone in C")
def lang_c(folder: Path) -> Iterator[Way]:
    yield Way(environment={"LANG": "C", "LC_ALL": "C"})


@kind("umask", "umask 077", "clone with umask")
def umask(folder: Path) -> Iterator[Way]:
    yield Way(("sh", "-c", 'umask 077 && exec "$@"', "sh"))


def _stranger(home: str | None) -> Way:
    """A user without a home; where this one is root, another: root may write anywhere."""
    environment = {"HOME": home, "PIP_CACHE_DIR": None}
    if os.geteuid() != 0:
        return Way(environment=environment)
    user = str(STRANGER)
    # What setpriv itself starts is still found with root's rights; what env starts is not.
    prefix = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env")
    return Way(prefix, environment, python=interpreter(OWN, prefix), owner=STRANGER)


@kind("no-home", "a user without HOME", "clone of a stranger")
def no_home(folder: Path) -> Iterator[Way]:
    yield _stranger(None)


@kind("closed-home", "a HOME that cannot be written", "clone of a stranger")
def closed_home(folder: Path) -> Iterator[Way]:
    home = folder / "closed"
    home.mkdir(mode=0o555, exist_ok=True)
    yield _stranger(str(home))


@kind("parallel", "the same in another clone, at the same time", "der Köder im Fluß")
def parallel(folder: Path) -> Iterator[Way]:
    yield Way(beside=True)


@kind("random-order", f"tests in random order, by seed {SEED}")
def random_order(folder: Path) -> Iterator[Way]:
    yield Way(pytest=f"--random-order --random-order-seed={SEED}")
