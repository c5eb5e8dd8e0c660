"""`ane-book prefill`: a prompt's cache as a file, which `run` and `chat` go on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
import sys
from typing import Annotated, Any, Literal

from ane_book.cli import options
from ane_book.cli.absent import serving
from ane_book.cli.load import load
from ane_book.cli.terminal import RECIPE
from ane_book.errors import InvalidInput
from mlprogram.cli.options import Precision
import typer

PromptCacheFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt-cache",
        help="If the prompt begins with what this file holds, only the rest is read; at the end "
        "the file holds this prompt and its answer. The conversation can be read out of it: only "
        "you can read it (mode 600).",
    ),
]
RUN = "`ane-book run {} THE-SAME-PROMPT --prompt-cache {}`"
#: Who goes on from a file, by its form; of a model and a file.
READERS = {
    "mlx": f"{RUN}, and mlx-lm 0.32 by load_prompt_cache",
    "mlx-swift": f"{RUN}, and mlx-swift-lm by loadPromptCache",
    "llama.cpp": "llama_state_seq_load_file, and llama-server with --slot-save-path",
}


@options.takes("Recipe", *RECIPE)
@options.takes("Sampling", "system")
def prefill_command(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="What to read; - reads it from stdin.")],
    recipe: dict,
    sampling: dict,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file to write; only you can read it (mode 600)."),
    ],
    form: Annotated[
        Literal["mlx", "mlx-swift", "llama.cpp"],
        typer.Option("--for", help="Who is to go on from it; llama.cpp needs ane-serve."),
    ] = "mlx",
    adapter: options.Adapter = None,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
) -> None:
    """Read a prompt, and write its cache, which others go on from.

    The prompt's last token is not read: whoever writes the answer begins with it.
    """
    llama = serving("llama_cache") if form == "llama.cpp" else None
    _check_folder(out)
    if llama is None and out.suffix != ".safetensors":
        raise InvalidInput(f"{out}: {form}-lm opens only names that end in .safetensors")
    session = load(model, "text-generation", precision, backend, **recipe)
    if adapter is not None:
        session.use(adapter)
    ids = session.encode(sys.stdin.read() if prompt == "-" else prompt, **sampling)
    if len(ids) == 1:
        raise InvalidInput("the prompt has one token, which is left to read; give a longer one")
    session.prefill(ids[:-1])
    if llama is None:
        session.save_cache(out, form)
    else:
        llama.write_sequence(session.prompt_cache(), out, session.bundle.manifest)
    left = f"the last one is left to whoever writes: token id {ids[-1]}"
    print(f"{len(ids) - 1:,} tokens read; {left}")
    print(f"{out.stat().st_size:,} bytes: {out}")
    print(f"goes on from it: {READERS[form].format(quote(model), quote(str(out)))}")


@contextmanager
def kept_in(session: Any, file: Path | None, prompt: str, sampling: dict) -> Iterator[dict]:
    """Have a `Session` go on from a file, if it exists, and write it; yields what streams take."""
    from ane_book.runtime.answer import common_prefix

    if opened(session, file) is not None:
        effort = sampling.get("reasoning_effort")
        ids = session.encode(prompt, sampling.get("system"), effort=effort)
        held = common_prefix(session._tokens, ids[:-1])
        print(f"{held:,} of {len(ids):,} tokens came from {file}", file=sys.stderr)
    yield {"reuse_cache": file is not None}
    if file is not None:
        session.save_cache(file)


def opened(session: Any, file: Path | None) -> list[dict] | None:
    """Have a `Session` go on from a file, if it exists, and return its messages.

    Raises InvalidInput for what could not be written after an answer, too.
    """
    from ane_book.runtime.prompt_cache_file import check_form

    if file is None:
        return None
    check_form(session.bundle.manifest, "mlx")
    _check_folder(file)
    return session.load_cache(file) if file.exists() else None


def _check_folder(file: Path) -> None:
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"{file}: there is no folder {file.parent}; make it")
