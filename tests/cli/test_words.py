"""The words of both commands: one meaning each, in groups, and what a word that went became."""

from collections import defaultdict
import re

from _command import ane_book, mlprogram, refused
from ane_book import cli
import mlprogram.cli as programs
import pytest
from typer.main import get_command

#: What an option does in every command that has it, where their helps say it in several ways.
MEANINGS = {
    "--adapter": "a LoRA adapter to answer with",
    "--backend": "what runs the programs",
    "--chip": "the engine to predict for",
    "--context": "most tokens of a call or of a conversation",
    "--fail-on": "exit code 1 where there is this, or what is graver",
    "--force": "write what exists anew",
    "--json": "print JSON",
    "--out": "where to write",
    "--precision": "what to compute in",
    "--seed": "of what is drawn at random",
    "--source": "what it was made of",
    "--timeout": "seconds at most",
}


def options():
    """Command, and each of its options."""
    for app in (cli.app, programs.app):
        group = get_command(app)
        for command in group.commands.values():
            for option in command.params:
                if option.param_type_name == "option":
                    yield command, option


def test_a_word_has_one_meaning():
    said = defaultdict(set)
    for _, option in options():
        first = re.split(r"[:;(.]| +\[", option.help or "")[0].strip().lower()
        said[max(option.opts, key=len)].add(first)
    several = {word: texts for word, texts in said.items() if len(texts) > 1}
    assert several.keys() == MEANINGS.keys(), "name the rarer one otherwise, or say what both mean"


def test_no_option_has_a_second_long_spelling():
    twice = {f"{command.name} {option.opts}" for command, option in options()
             if sum(word.startswith("--") for word in option.opts) > 1}  # fmt: skip
    assert twice == set()


@pytest.mark.parametrize("short, long", {"-o": "--out", "-m": "--model", "-q": "--quant"}.items())
def test_a_short_form_goes_with_its_long_one_everywhere(short, long):
    found = {command.name: short in option.opts
             for command, option in options() if long in option.opts}  # fmt: skip
    assert found and all(found.values()), found


@pytest.mark.parametrize(
    "command, app, headings",
    [
        (ane_book, cli.app, ["Convert", "Run", "Evidence", "Upkeep"]),
        (mlprogram, programs.app, ["Convert", "Run", "Neural Engine", "When it fails"]),
    ],
)
def test_help_has_every_command_once_in_its_group(command, app, headings):
    said = command("-h").stdout
    assert said == command("--help").stdout
    found = re.findall(r"^(\S.*):$", said, re.M)
    assert found == ["Options", *headings]
    named = re.findall(r"^  ([a-z]+) ", said.partition("\nConvert:")[2], re.M)
    assert sorted(named) == sorted(get_command(app).commands)


def test_what_is_said_of_an_option_of_convert_is_said_whole_there_and_begun_elsewhere():
    def lines(name: str) -> list[str]:
        said = ane_book(name, "--help").stdout
        return re.search(r"  -q, --quant .*\n(?: {5,}.*\n)*", said)[0].splitlines()

    assert "auto:BITS" in " ".join(lines("convert"))
    for name in ("run", "chat", "embed", "redact", "prefill", "demo", "bench", "plan"):
        assert len(lines(name)) <= 2, name


@pytest.mark.parametrize(("words", "instead"), programs.GONE.items())
def test_what_went_of_mlprogram_says_what_does_it(words, instead):
    command, option = words.split()
    assert refused(command, option, "x", by=mlprogram) == f"error: {words} is gone: {instead}"


#: What somebody wants, and the command whose line in --help says it, by these words.
WISHES = {
    "does my model fit an iPhone, and how fast is it": ("plan", "size, memory, speed"),
    "ask it something": ("run", "Answer one prompt"),
    "talk with it": ("chat", "Talk with a model"),
    "is what I converted still the model": ("check", "PyTorch"),
    "how much does int4 cost": ("quality", "worse a bundle is"),
    "will the engine take it": ("place", "on the Neural Engine"),
    "does this Mac run it there": ("residency", "Ask this Mac"),
    "where do the numbers differ": ("diff", "differs"),
    "Core ML printed an error": ("explain", "error of Core ML"),
    "my disk is full": ("cache", "delete it"),
    "search texts by meaning": ("embed", "vectors of texts"),
    "no names in this letter": ("redact", "private"),
    "a server for my editor": ("serve", "OpenAI's API"),
}


@pytest.mark.parametrize("wish", WISHES)
def test_help_leads_from_a_wish_to_its_command(wish):
    command, words = WISHES[wish]
    (line,) = re.findall(rf"^  {command} .*$", ane_book("--help").stdout, re.M)
    assert words in line
