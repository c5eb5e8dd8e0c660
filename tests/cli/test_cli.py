"""`ane-book` as a reader types it: a process of its own, its output, its errors, its exit code."""

from dataclasses import asdict
from inspect import signature
from itertools import product
import json
from pathlib import Path
import re
import shlex
import subprocess
import sys

from _adapters import write_adapter
from _command import ane_book, chatty_copy, refused
from ane_book import cli
from ane_book.bundle import Bundle
from ane_book.cli import GONE, app
from ane_book.conversion import convert
from ane_book.device import describe
from ane_book.options import Recipe
from ane_book.runtime import Session
from mlprogram import MLProgram, machine
import pytest
import typer


class TestRun:
    def test_prints_the_answer_and_nothing_else(self, bundle):
        done = ane_book("run", bundle, "Hello", "--max-tokens", "12", "--precision", "fp32")
        expected = Session(bundle, "fp32", "mil").generate("Hello", max_tokens=12)
        assert done.returncode == 0
        assert done.stdout == expected.text + "\n"
        assert f"{expected.prompt_tokens} + {len(expected.token_ids)} tokens" in done.stderr
        assert "decode" in done.stderr and "tokens/s" in done.stderr

    def test_reads_a_long_prompt_from_stdin(self, bundle):
        typed = ane_book("run", bundle, "Hi\nyou", "--precision", "fp32", "--backend", "mil")
        piped = ane_book("run", bundle, "-", "--precision", "fp32", input="Hi\nyou")
        assert piped.stdout == typed.stdout and piped.returncode == 0

    def test_sampling_options_arrive(self, bundle):
        options = {"temperature": 2.0, "top_k": 50, "top_p": 0.9, "seed": 1, "max_tokens": 20}
        typed = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        done = ane_book("run", bundle, "Hi", "--precision", "fp32", *typed)
        session = Session(bundle, "fp32", "mil")
        assert done.stdout == session.generate("Hi", **options).text + "\n"
        assert done.stdout != session.generate("Hi", max_tokens=20).text + "\n"

    def test_as_json(self, bundle):
        done = ane_book("run", bundle, "Hello", "--json", "--precision", "fp32", "--backend", "mil")
        found = json.loads(done.stdout)
        expected = asdict(Session(bundle, "fp32", "mil").generate("Hello", max_tokens=10_000))
        rates = {"prefill_tps", "decode_tps"}
        assert found.keys() == expected.keys() and done.stderr == ""
        assert all(found[name] == expected[name] for name in found.keys() - rates)

    def test_an_adapter(self, tiny_bundle, tmp_path):
        """In `run` and in `chat`, as a session has it."""
        model, bundle = tiny_bundle("llama", kv="state", lora_slots=4)
        folder = write_adapter(model, tmp_path / "red", 1, alpha=24.0)
        session = Session(bundle, "fp32", "mil")
        plain = session.generate("Hello", max_tokens=12).text
        session.use(folder)
        expected = session.generate("Hello", max_tokens=12).text
        how = ("--adapter", folder, "--max-tokens", "12", "--precision", "fp32")
        done = ane_book("run", bundle.path, "Hello", *how)
        assert done.stdout == expected + "\n" and expected != plain
        talker = chatty_copy(bundle.path, tmp_path)
        talked = ane_book("chat", talker, *how, input="Hello\n").stdout
        session = Session(Bundle.open(talker), "fp32", "mil")
        session.use(folder)
        asked = [{"role": "user", "content": "Hello"}]
        assert talked == session.generate(asked, max_tokens=12).text + "\n"

    def test_an_adapter_that_has_no_place_is_refused(self, bundle, tmp_path):
        missing = ane_book("run", bundle, "Hi", "--adapter", tmp_path / "no").stderr
        assert "does not exist" in missing
        for command in (("run", bundle, "Hi"), ("chat", bundle)):
            assert "without slots" in refused(*command, "--adapter", tmp_path)

    def test_a_prompt_beyond_the_context(self, bundle):
        message = refused("run", bundle, "x" * 100)
        assert "100 tokens" in message and "context of 32" in message

    def test_an_unknown_model_names_the_nearest(self):
        message = refused("run", "smolm2-135m-instuct", "Hi")
        assert "smolm2-135m-instuct" in message and "smollm2-135m-instruct" in message

    def test_a_word_that_is_none_of_several(self):
        said = ane_book("run", "x", "Hi", "--draft", "self").stderr
        assert said.endswith("Error: Invalid value for '--draft': 'self' is not one of 'lookup'.\n")

    @pytest.mark.skipif(machine.CAN_PREDICT, reason="Core ML runs here")
    def test_core_ml_off_a_mac(self, bundle, tmp_path):
        for model in (bundle, tmp_path):  # also before a conversion, which takes long
            assert machine.CAN_PREDICT_REASON in refused("run", model, "Hi", "--backend", "coreml")

    @pytest.mark.parametrize(("words", "instead"), GONE.items())
    def test_what_went_says_what_does_it(self, words, instead):
        command, *option = words.split()
        assert refused(command, *option, "Hi") == f"error: {words} is gone: {instead}"
        if option:
            assert refused(command, "Hi", f"{option[0]}=x").startswith(f"error: {words} is gone")

    def test_after_two_dashes_it_is_no_option(self):
        assert "is gone" not in refused("redact", "--", "--dry-run")

    def test_the_list_of_commands_is_whole_in_80_columns(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        done = ane_book("--help")
        assert "inspect" in done.stdout and "..." not in done.stdout.partition("\nConvert:")[2]

    @pytest.mark.parametrize(("word", "slow"), [
        ("--help", {"asyncio", "numpy", "pydantic", "rich", "torch"}),
        ("models", {"coremltools", "huggingface_hub", "torch", "transformers"}),
    ])  # fmt: skip
    def test_a_word_about_the_commands_takes_few_imports(self, word, slow):
        assert imported(slow, word) == []

    @pytest.mark.skipif(machine.CAN_PREDICT, reason="Core ML is reached through coremltools")
    def test_a_kept_bundle_needs_nothing_of_a_conversion(self, bundle):
        slow = {"ane_book.conversion", "ane_book.models", "ane_book.weights", "coremltools"}
        slow |= {"jinja2", "transformers"}
        assert imported(slow, "run", bundle, "Hi", "--max-tokens", "2") == []

    def test_a_package_is_checked_without_what_runs_it(self, bundle):
        assert imported({"coremltools", "torch"}, "check", bundle / "head.mlpackage") == []

    @pytest.mark.skipif(machine.neural_engine()[0], reason="an engine is here")
    def test_without_an_engine_residency_says_so_before_what_measures_is_imported(self, bundle):
        slow = {"coremltools", "torch", "mlprogram.ane.mac.residency"}
        assert imported(slow, "residency", bundle, code=3) == []
        done = ane_book("residency", bundle)
        reason = machine.neural_engine()[1]
        assert done.stdout == f"{bundle.name}: unmeasured: {reason}\n" and done.stderr == ""

    def test_a_name_leads_to_a_kept_bundle_without_what_converts(self):
        convert("smollm2-135m-instruct")
        slow = {"ane_book.conversion.build", "ane_book.conversion.plan", "ane_book.models"}
        assert imported(slow, "run", "smollm2-135m-instruct", "Hi", "--max-tokens", "1") == []

    def test_of_options_of_its_conversion_it_is_held_to_them(self, bundle):
        said = refused("run", bundle, "Hi", "--kv", "host")
        assert "was converted with kv state, not host" in said


def imported(modules: set[str], *arguments: object, code: int = 0) -> list[str]:
    """Which of these modules a command imports that ends with this code."""
    script = (
        "import sys, ane_book.__main__ as command\n"
        f"sys.argv = {['ane-book', *map(str, arguments)]!r}\n"
        "try: command.main()\n"
        f"finally: print('imported:', *sorted({modules!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout.rpartition("imported:")[2].split()


class TestChat:
    def test_an_effort_without_a_switch_is_refused_before_the_first_line(self, chatty):
        assert "no switch for 'high'" in refused("chat", chatty, "--reasoning-effort", "high")

    def test_needs_a_chat_template(self, bundle):
        done = ane_book("chat", bundle, input="Hi\n")
        assert done.returncode == 2
        assert "has no chat template" in done.stderr


class TestInspect:
    def test_a_package_in_words(self, bundle):
        package = next(bundle.glob("layers*"))
        done = ane_book("inspect", package)
        assert done.returncode == 0
        program = MLProgram(package, "decode")
        count = len(program.operations)
        assert re.search(f"  ops +{count} +", done.stdout)
        for name, type_ in (program.inputs | program.states | program.outputs).items():
            assert re.search(f"{re.escape(name)}.*{re.escape(str(type_))}", done.stdout), name

    def test_a_bundle_as_json(self, bundle):
        facts = json.loads(ane_book("inspect", bundle, "--json").stdout)
        manifest = json.loads((bundle / "manifest.json").read_text())
        assert facts["recipe"] == manifest["recipe"]
        assert len(facts["packages"]) == len(manifest["packages"])
        for package in facts["packages"]:
            folder = Path(package["package"])
            stored = (folder / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
            counted = sum(entry["bytes"] for entry in package["weights"].values())
            assert 0.8 * stored < counted <= stored
            assert set(package["functions"]) == {"decode", "prefill"}
            for name, function in package["functions"].items():
                program = MLProgram(folder, name)
                assert sum(function["operations"].values()) == len(program.operations)

    def test_a_bundle_in_words(self, bundle):
        done = ane_book("inspect", bundle)
        assert "llama, 3 layers" in done.stdout and "head.mlpackage" in done.stdout
        assert "layers_A-B has the layers from A up to, and without, B" in done.stdout
        recipe = next(line for line in done.stdout.splitlines() if line.startswith("recipe"))
        assert "kv state" in recipe and "None" not in recipe and "()" not in recipe


NAME = "smollm2-135m-instruct"
OF_PACKAGES = "inspect", "check", "place", "residency", "quality"
OF_MODELS = ("run ./NAME Hi", "embed Hi --model ./NAME", "chat ./NAME", "plan ./NAME",
             "convert ./NAME")  # fmt: skip
#: Commands in a folder with weights, a graph and an empty package, and what they say.
NO_PACKAGE = [
    ("inspect empty", "not a .mlpackage"),
    ("inspect nothing", "no reference model and no path here is named 'nothing'"),
    *((f"{each} {name}", "no path here is named .*; did you mean NAME")
      for each, name in product(OF_PACKAGES, ("smollm2-135m", "nowhere/NAME"))),
    *((f"{each} {path}", "NAME/?: no such package|no manifest.json")
      for each, path in product(OF_PACKAGES, ("./NAME", "NAME/"))),
    *((each, "./NAME: there is no such file or folder; did you mean NAME") for each in OF_MODELS),
    ("diff mein.mlpackage", "mein.mlpackage: no such package"),
    ("diff NAME", "NAME: no such package"),
    ("save mein.mlpackage x.mlmodelc", "mein.mlpackage: no such package"),
    ("save NAME x.mlmodelc", "NAME: no such package"),
    *((f"{each} 'a m.gguf'", "a m.gguf: a .gguf file holds weights, not a program.*"
       "`ane-book plan 'a m.gguf'`")  # ready to paste, spaces and all
      for each in ("inspect", "inspect --json")),
    *((f"{each} m.onnx", "an ONNX graph, not a package; `mlprogram convert m.onnx")
      for each in OF_PACKAGES),
    *((f"{each} weights/model.safetensors", "a .safetensors file holds weights, not a program")
      for each in (*OF_PACKAGES, "check --calibrate golden")),
    *((f"{each} weights", "a folder of .safetensors files holds weights") for each in OF_PACKAGES),
    *((f"diff {path}", f"{path}: not a .mlpackage, .mlmodelc or .mlmodel")
      for path in ("m.onnx", "weights/model.safetensors")),
    *((f"{each} m.onnx", "no genai_config.json beside it.*`mlprogram convert m.onnx --out")
      for each in ("convert", "plan")),
    ("diff weights", "weights is not a .mlpackage"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), NO_PACKAGE)
def test_what_is_no_package_is_told_and_not_converted(words, says, tmp_path, monkeypatch):
    """A folder that is not there is not the model of its name, either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    for folder in ("empty", "mine.mlpackage", "weights"):
        (tmp_path / folder).mkdir()
    for file in ("m.onnx", "weights/model.safetensors"):
        (tmp_path / file).touch()
    (tmp_path / "a m.gguf").write_bytes(b"GGUF")
    assert re.search(says.replace("NAME", NAME), refused(*shlex.split(words.replace("NAME", NAME))))
    assert not (tmp_path / "cache").exists()


class TestConvert:
    def test_has_every_option_of_a_recipe_but_one(self):
        options = {*signature(cli.convert).parameters}
        assert {*Recipe.model_fields} - options == {"head_rows"}

    def test_prints_the_folder_and_writes_it(self, tiny, tmp_path):
        _, checkpoint = tiny("llama")
        out = tmp_path / "made"
        options = ["--out", out, "--context", "32", "--prefill", "8", "--kv", "host"]
        done = ane_book("convert", checkpoint, *options)
        assert (done.returncode, done.stdout) == (0, f"{out}\n")
        recipe = json.loads((out / "manifest.json").read_text())["recipe"]
        assert (recipe["kv"], recipe["context"], recipe["prefill"]) == ("host", 32, 8)
        assert "of" in done.stderr.splitlines()[-1]  # how far it came

    def test_bad_sizes(self, tiny, tmp_path):
        _, checkpoint = tiny("llama")
        out = tmp_path / "made"
        said = refused("convert", checkpoint, "--out", out, "--shard-limit", "much")
        assert "'much' is not a size" in said and not out.exists()
        said = refused("convert", checkpoint, "--shard-limit", "9")
        assert re.search(r"has [\d,]+ bytes of weights, more than the shard limit of 9;", said)
        assert "context must be greater" in refused("convert", "no model", "--context", "0")


class TestManners:
    def test_every_command_has_a_help(self):
        for command in typer.main.get_command(app).list_commands(None):
            assert ane_book(command, "--help").returncode == 0

    def test_models_are_listed(self):
        done = ane_book("models")
        assert done.returncode == 0 and done.stdout.startswith("zaya-small ")

    def test_doctor_gives_every_check_a_line(self):
        done = ane_book("doctor")
        checks = [check for check, _, _ in describe()] + ["compiled kernels"]
        assert done.returncode == 0
        assert all(line.startswith(tuple(checks)) for line in done.stdout.splitlines())
        assert machine.CAN_PREDICT_REASON in done.stdout

    @pytest.mark.parametrize("words", [
        "sing", "run", "run m p --kv disk", "inspect p --out o.npz",
    ])  # fmt: skip
    def test_usage_errors(self, words):
        done = ane_book(*words.split())
        assert (done.returncode, done.stdout) == (2, "")
        assert "Error: " in done.stderr
