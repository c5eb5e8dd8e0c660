"""What a Swift session holds as a file: Python and mlx-lm go on from it, and Swift from theirs."""

from collections.abc import Callable
from itertools import product
import json
import math
from pathlib import Path
import random
import shlex
import shutil
import stat
import subprocess

from _long import long_but
from _tiny import prompt
from ane_book.bundle.manifest import Manifest
from ane_book.errors import InvalidInput
from ane_book.layout import LAYOUTS
from ane_book.runtime import Session
from ane_book.runtime.prompt_cache_file import IN_MLX, check_form
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from swift_tables import add_tables
from test_swift_session import EXECUTOR, FORMS, swift

HELD, TOKENS = 22, 8  # tokens that a file holds, more than a window of Gemma 3's; of an answer
IDS = list(prompt(HELD + 1))


def contents(file: Path) -> tuple[dict, dict]:
    with safe_open(file, "np") as own:
        return own.metadata(), load_file(file)


def bits(file: Path) -> tuple[dict, dict]:
    """All that a file says, its arrays as bytes; of mlx's "none" just that it is empty."""
    texts, arrays = contents(file)
    texts = {name: json.loads(t) if "ane_book" in name else t for name, t in texts.items()}
    return texts, {n: (a.size and a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()}


#: Bundles of `test_swift_session`, which are made once.
CASES = [("llama", form) for form in FORMS.values()]
CASES += [
    (family, {"form": own})
    for family in ("gemma3_text", "lfm2", "glm4", "gemma4_text")
    for own in LAYOUTS
]
CASES += product(("phi3", "qwen2", "qwen3_moe", "olmo2", "granite"), [{"form": "apple"}])


@pytest.mark.parametrize(
    ("family", "recipe"), long_but(CASES, CASES[2], ("gemma3_text", {"form": "rows"}))
)
def test_either_goes_on_from_what_the_other_wrote(family, recipe, test_host, tiny_bundle, tmp_path):
    bundle = tiny_bundle(family, **recipe)[1]
    python = Session(bundle, backend="mil")
    expected = python.generate(IDS, max_tokens=TOKENS).token_ids
    python.rewind(HELD)
    short = Session(bundle, backend="mil").generate(IDS[:12], max_tokens=TOKENS).token_ids
    with swift(test_host, bundle) as ask:
        assert ask(tokens=IDS, max_tokens=TOKENS)["token_ids"] == expected
        for form in ("mlx", "mlx-swift"):
            assert ask(rewind=HELD)["position"] == HELD
            files = [tmp_path / f"{form} by {who}" for who in ("Python", "Swift")]
            python.save_cache(files[0], form)
            assert ask(save=str(files[1]), form=form)["position"] == HELD
            assert stat.S_IMODE(files[1].stat().st_mode) == 0o600
            assert bits(files[0]) == bits(files[1])
            assert ask(load=str(files[0]))["position"] == HELD
            answer = ask(tokens=IDS, max_tokens=TOKENS, reuse_cache=True)
            assert (answer["token_ids"], answer["prefilled"]) == (expected, 1)
        # Of earlier tokens than a file's last ones windows and tails have nothing: all run again.
        ask(load=str(files[0]))
        assert ask(tokens=IDS[:12], max_tokens=TOKENS, reuse_cache=True)["token_ids"] == short
    python.reset()
    python.load_cache(files[1])
    assert python.generate(IDS, max_tokens=TOKENS, reuse_cache=True).token_ids == expected


def as_before(file: Path, former: Path) -> Path:
    """A file of mlx-lm 0.32 in the form that it had up to 0.31."""
    texts, arrays = contents(file)
    kinds = [texts[f"1.{i}"] for i in range(sum(name.startswith("1.") for name in texts))]
    told, kept = {f"2.{i}": kind for i, kind in enumerate(kinds)}, {}
    for i, kind in enumerate(kinds):
        if kind == "ArraysCache":
            told[f"0.{i}"], kept[f"{i}.0"] = "", arrays[f"{i}.0.0"]
            continue
        numbers = [int(arrays[f"{i}.{j}"]) for j in range(2, 6) if f"{i}.{j}" in arrays]
        offset, ring = numbers[0], numbers[1:]
        for j in range(2):
            kept[f"{i}.{j}"] = np.ascontiguousarray(arrays[f"{i}.{j}"][:, :, :offset])
        if ring:
            values = (*ring[:2], offset, ring[2])
            told |= {f"0.{i}.{j}": str(value) for j, value in enumerate(values)}
        else:
            told[f"0.{i}"] = ""
    save_file(kept, former, told)
    return former


@pytest.mark.parametrize("family", long_but(["llama", "gemma3_text", "lfm2"], "gemma3_text"))
def test_mlx_lm_goes_on_and_gives_back(family, test_host, tiny, tiny_bundle, tmp_path):
    """Its ring of Gemma 3's window has turned by then: the oldest tokens are in its middle."""
    mx = pytest.importorskip("mlx.core")
    cache_of = pytest.importorskip("mlx_lm.models.cache")
    load_model = pytest.importorskip("mlx_lm.utils").load_model
    model, folder = tiny(family)
    names = {"sliding_window_pattern": 2, "block_dim": model.config.hidden_size}  # mlx-lm's own
    theirs = load_model(folder, model_config=names)[0]
    bundle = tiny_bundle(family, form="rows")[1]
    ours, own = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    with swift(test_host, bundle) as ask:
        expected = ask(tokens=IDS, max_tokens=TOKENS)["token_ids"]
        ask(rewind=HELD)
        ask(save=str(ours), form="mlx")
        caches, answer = cache_of.load_prompt_cache(str(ours)), [IDS[-1]]
        for _ in range(TOKENS):
            answer.append(int(mx.argmax(theirs(mx.array([answer[-1:]]), cache=caches)[0, -1])))
        assert answer[1:] == expected
        caches = cache_of.make_prompt_cache(theirs)
        for token in IDS[:-1]:
            theirs(mx.array([[token]]), cache=caches)
        cache_of.save_prompt_cache(str(own), caches)
        for file in (own, as_before(own, tmp_path / "former")):
            assert "does not say its" in ask(load=str(file))["error"]
            assert ask(load=str(file), tokens=IDS[:-1])["position"] == HELD
            answer = ask(tokens=IDS, max_tokens=TOKENS, reuse_cache=True)
            assert (answer["token_ids"], answer["prefilled"]) == (expected, 1)


def record(**changes) -> Callable:
    def change(texts, arrays):
        own = json.loads(texts["0.ane_book"])
        made = {k: v for k, v in changes.items() if k != "tokens"}
        own["made_of"] |= made
        own["tokens"] = changes.get("tokens", own["tokens"])
        texts["0.ane_book"] = json.dumps(own)

    return change


def text(name: str, value: str | None) -> Callable:
    return lambda texts, _: texts.pop(name) if value is None else texts.update({name: value})


def array(name: str, to: Callable) -> Callable:
    return lambda _, arrays: arrays.update({name: np.array(to(arrays.get(name)), order="C")})


def filled(value: float) -> Callable:
    def change(own):
        own = own.astype(np.float32)
        own[0, 0, -1, 3] = value
        return own if abs(value) == 1e6 else own.astype(np.float16)

    return change


#: Layer 0 has a window of Gemma 3's, and layer 1 none.
WRONG = {
    "is a": [
        text("1.0", kind)
        for kind in ("QuantizedKVCache", "ChunkedKVCache", "CacheList", "", "KVCache ", "x" * 999)
    ],
    "layers, and here 3": [
        lambda texts, arrays: (texts.pop("1.2"), [arrays.pop(f"2.{j}") for j in range(6)])
    ],
    "is missing": [
        *(lambda _, arrays, n=name: arrays.pop(n) for name in ("0.0", "1.1", "1.2", "0.5")),
        text("1.3", "KVCache"),
    ],
    "no layer": [text("1.2", None)]
    + [array(name, lambda _: np.zeros(0, np.int32)) for name in ("3.0", "x", "0.6")],
    "not finite": [array("1.0", filled(v)) for v in (np.nan, np.inf, -np.inf, 1e6)]
    + [array("0.1", filled(np.nan)), array("0.0", lambda own: own.astype(np.int32))],
    "does not fit": [
        array("1.0", lambda own: own[:, :, :-1]),
        array("1.0", lambda own: own.swapaxes(1, 2)),
        array("1.1", lambda own: np.repeat(own, 2, 1)),
        array("1.1", lambda own: np.repeat(own, 2, 0)),
        array("0.0", lambda own: own[0]),
        array("0.1", lambda own: own[..., :-1]),
        *(array(name, lambda own, v=v: np.int32(v)) for name, v in {"0.5": -1, "0.3": 30}.items()),
        *(array("0.5", lambda own, v=v: np.int32(v)) for v in (22, 2**31 - 1)),
        array("1.2", lambda own: np.int32(HELD + 1)),
    ],
    "no whole number": [
        array("1.2", lambda own: np.float32(HELD)),
        array("0.4", lambda own: np.int32([21, 21])),
    ],
    "room for 32": [array("0.2", lambda own, v=v: np.int32(v)) for v in (0, -1, 33, 2**31 - 1)],
    "outside the vocabulary": [record(tokens=[*IDS[:-2], own]) for own in (257, -1, 2**31 - 1)],
    "tokens are named": [
        *(record(tokens=own) for own in (IDS, IDS[:3])),
        array("0.2", lambda _: np.int32(HELD - 1)),
    ],
    "does not say": [record(tokens=[])],
    "ane_book is damaged": [
        *(text("0.ane_book", own) for own in ("", "[]", "{", "[" * 9999, '{"tokens": [1]}')),
        *(record(tokens=own) for own in (["1"], [1.5], [2**31], "1")),
        record(weights=3),
    ],
    "no prompt cache": [text("2.0", None), lambda texts, _: texts.clear()],
    **{
        f"another {name}": [record(**{name: "other"})]
        for name in ("weights", "tokenizer", "recipe", "adapter", "precision")
    },
}  # fmt: skip


def test_damaged_and_foreign_files_are_refused(test_host, tiny_bundle, tmp_path):
    """Each by one line that says why, and the session goes on with what it held."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    with swift(test_host, tiny_bundle("gemma3_text", form="rows")[1]) as ask:
        expected = ask(tokens=IDS, max_tokens=TOKENS)["token_ids"]
        ask(rewind=HELD)
        ask(save=str(good), form="mlx")
        wrong = [(says, change) for says, own in WRONG.items() for change in own]
        for number, (says, change) in enumerate(wrong):
            texts, arrays = contents(good)
            change(texts, arrays)
            save_file(arrays, bad, texts or None)
            error = ask(load=str(bad))["error"]
            assert says in error and "\n" not in error and len(error) < 400, (number, error)
        whole, rng = good.read_bytes(), random.Random(1)
        cut = [whole[: rng.randrange(len(whole))] for _ in range(20)]
        for number, damaged in enumerate([*cut, b"", whole + b"\0"]):
            bad.write_bytes(damaged)
            error = ask(load=str(bad))["error"]
            assert str(bad) in error and "\n" not in error, (number, error)
        for place in (tmp_path, tmp_path / "none"):
            assert "no such file" in ask(load=str(place))["error"]
        assert len(wrong) + len(cut) >= 60
        answer = ask(tokens=IDS, max_tokens=TOKENS, reuse_cache=True)
        assert (answer["token_ids"], answer["prefilled"]) == (expected, 1)


def test_a_file_is_written_whole_or_not_at_all(test_host, tiny_bundle, tmp_path):
    """Where the disk is full, or no file can be, the former one stays, and nothing beside it."""
    file = tmp_path / "file"
    file.write_bytes(b"former")
    limited = ["sh", "-c", f'trap "" XFSZ; ulimit -f 4; exec {shlex.join(test_host)} "$@"', "sh"]
    with swift(limited, tiny_bundle("llama", kv="host")[1]) as ask:
        assert "holds no tokens yet" in ask(save=str(file))["error"]
        ask(tokens=IDS, max_tokens=1)
        (tmp_path / "folder").mkdir()
        for place in (file, tmp_path / "folder", tmp_path / "none" / "file"):
            assert f"{place}: cannot be written" in ask(save=str(place))["error"]
    assert file.read_bytes() == b"former"
    assert sorted(own.name for own in tmp_path.iterdir()) == ["file", "folder"]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
}  # fmt: skip
SCALED = [
    YARN,
    YARN | {"truncate": False},
    YARN | {"attention_factor": 1.0},
    YARN | {"attention_factor": 0.1 * math.log(4) + 1},
    LONG,
    {"rope_type": "linear", "factor": 2.0},
]


def test_models_are_refused_that_python_refuses(test_host, tiny_bundle, tmp_path):
    """By what their manifest says. Those with a memory are refused when they are opened."""
    folder = shutil.copytree(add_tables(tiny_bundle("llama", kv="host")[1]).path, tmp_path / "b")
    given, file = json.loads((folder / "manifest.json").read_text()), tmp_path / "file"
    without = [own for own in IN_MLX if not own.startswith(("qwen3_5", "granitemoe"))]
    cases = [*product([*without, "zaya"], [{}]), *product(("llama", "phi3", "lfm2"), SCALED)]
    said = set()
    for (family, scaling), windows in product(cases, (None, 9)):
        given["model"]["architecture"], given["host"]["masks"]["mask"] = family, windows
        given["host"]["rotary"]["rope"]["scaling"] = scaling
        manifest = Manifest.model_validate(given | {"seal": ""})
        (folder / "manifest.json").write_text(manifest.model_dump_json())
        try:
            check_form(manifest, "mlx")
            expected = "the session holds no tokens yet, so there is no cache to take"
        except InvalidInput as error:
            expected = str(error)
        command = [*test_host, "answers", str(folder), "--executor", "true"]
        request = json.dumps({"save": str(file)})
        done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["error"] == expected
        said.add(expected)
    assert len(said) > 5


def test_a_command_goes_on_from_a_file(anebook, tiny_bundle, tmp_path):
    bundle, file = add_tables(tiny_bundle("llama", kv="state")[1]), tmp_path / "file"

    def run(*ids: int) -> subprocess.CompletedProcess:
        command = [*anebook, "run", bundle.path, ",".join(map(str, ids)), "--ids", "--executor"]
        command += [EXECUTOR, "--max-tokens", "4", "--prompt-cache", file]
        return subprocess.run(command, capture_output=True, text=True)

    ids, session = IDS[:9], Session(bundle, backend="mil")
    for more in ((), (5, 6)):
        ids = [*ids, *more]
        expected = session.generate(ids, max_tokens=4, reuse_cache=bool(more)).token_ids
        assert run(*ids).stdout == ",".join(map(str, expected)) + "\n"
        ids += expected[:-1]
        assert json.loads(contents(file)[0]["1.ane_book"])["tokens"] == ids
    file.write_bytes(b"x")
    done = run(*ids)
    assert done.returncode == 2 and f"{file}: " in done.stderr and done.stdout == ""
    assert file.read_bytes() == b"x"
