"""`--json`: every command that prints facts prints them as JSON, too."""

import json
import os
from pathlib import Path
import re

from _command import ane_book
from ane_book import reference_models
from ane_book.bundle import cache
from ane_book.cli import app
from mlprogram.terminal import show
import pytest
from typer.main import get_command

#: Those that print an answer, a path of what they wrote, or talk.
OTHERS = {"chat", "convert", "demo", "prefill", "redact", "save", "serve"}


def facts(*arguments: str, code: int = 0):
    done = ane_book(*arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_every_command_that_prints_facts_has_it():
    group = get_command(app)
    commands = [group.resolve_command(group.make_context("ane-book", [n]), [n])[1]
                for n in group.list_commands(None)]  # fmt: skip
    lack = {command.name for command in commands
            if not any("--json" in option.opts for option in command.params)}  # fmt: skip
    assert lack <= OTHERS


def test_models():
    known = {model["name"]: model for model in facts("models")}
    assert list(known) == list(reference_models())
    assert known["smollm2-135m-instruct"]["license"] == "Apache-2.0"
    assert known["privacy-filter-small"]["task"] == "token-classification"
    assert str(Path.home()) not in json.dumps(known)


def test_plan_says_what_the_text_says(bundle):
    arguments = "plan", "hy-mt", "--quant", "int8", "--chip", "m4-max"
    found, text = facts(*arguments), ane_book(*arguments).stdout
    assert found["weight_bytes"] == sum(found["packages"].values())
    assert {name: sum(sizes) for name, sizes in found["weight_files"].items()} == found["packages"]
    assert f"{found['weight_bytes'] / 1e6:,.1f} MB, the largest" in text
    low, high = found["predicted"]["tokens_s"]
    assert f"{low:,.1f} to {high:,.1f} tokens/s" in text
    assert found["per_token"]["dispatches"] == found["programs"]


def test_plan_of_what_generates_no_text():
    found = facts("plan", "all-minilm-l6-v2")
    assert "per_call" in found and found["cache_bytes"] == 0


def test_doctor():
    checks = {check["check"]: check["ok"] for check in facts("doctor")}
    assert checks["torch"] is True and checks["system"] is None


def test_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
    nothing = {"bundles": [], "compiled": [], "lowered": []}
    assert facts("cache") == {"folder": str(cache.bundles())} | nothing
    kept = cache.bundles() / f"tiny-{'0' * 16}"
    kept.mkdir(parents=True)
    (kept / "file").write_text("four")
    (entry,) = facts("cache")["bundles"]
    assert (entry["name"], entry["bytes"], entry["recipe"]) == (kept.name, 4, {})
    assert re.fullmatch(r"20..-..-..T..:..:..Z", entry["used"])
    assert facts("cache", "delete", "--all") == {"deleted": [entry]} and not kept.exists()


def test_lowered_blocks_are_an_entry_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
    (tmp_path / "lowered").mkdir()
    for name in "ab":
        (tmp_path / "lowered" / name).write_bytes(bytes(100))
    (entry,) = facts("cache")["lowered"]
    assert (entry["name"], entry["bytes"], entry["recipe"]) == ("lowered", 200, {})
    assert re.search("lowered +200 bytes", ane_book("cache").stdout)
    assert facts("cache", "delete", "lowered") == {"deleted": [entry]}
    assert not (tmp_path / "lowered").exists() and facts("cache")["lowered"] == []


@pytest.mark.long
def test_a_name_leads_to_its_bundle_and_the_cache_says_how_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
    done = ane_book("convert", "privacy-filter-small", "--quant", "int8", "--context", "96")
    made = Path(done.stdout.strip())
    (entry,) = facts("cache")["bundles"]
    assert entry["recipe"] == {"context": 96, "quant": "int8"}  # the head's is as quant
    name = "privacy-filter-small"
    assert facts("inspect", name)["bundle"] == facts("check", name)["checked"] != str(made)
    assert len(facts("cache")["bundles"]) == 2  # converted once more, as the name alone says
    assert facts("place", name)["package"].startswith(str(tmp_path))
    assert "in 1 package" in ane_book("check", name, "--github").stdout
    assert facts("cache", "delete", made.name)["deleted"] == [entry]


DAMAGED = {
    "no JSON": b"{",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "not UTF-8": b'{"recipe": {"quant": "\xff"}}',
    "another type": b'{"recipe": {"context": {"a": [1]}, "kv": "\\u001b[2J"}}',
    "a list": b"[]",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_says_nothing_of_how_a_bundle_was_made(tmp_path, monkeypatch, text):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
    kept = tmp_path / "bundles" / f"tiny-{'0' * 16}"
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_bytes(text)
    (entry,) = cache.entries()
    assert (entry.bytes, entry.recipe) == (len(text), {})


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path))
    kept = tmp_path / "bundles" / f"tiny-{'0' * 16}"
    kept.mkdir(parents=True)
    os.mkfifo(kept / "manifest.json")
    assert facts("cache")["bundles"][0]["recipe"] == {}


def test_diff_of_equal_programs_and_of_different_ones(tiny_bundle, bundle):
    head, other = bundle / "head.mlpackage", next(bundle.glob("layers*"))
    equal = facts("diff", head, head)
    assert equal["equal"] is True and equal["first"] is None
    assert {output["error"] for output in equal["outputs"]} == {0.0}
    half = facts("diff", other, "--tolerance", "0", code=1)
    assert half["equal"] is False and half["first"]["error"] > 0


def test_what_json_has_no_number_for_is_text(capsys):
    show(lambda: {"a": [float("inf"), (1.5, float("nan"))]}, str, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": ["inf", [1.5, "nan"]]}
