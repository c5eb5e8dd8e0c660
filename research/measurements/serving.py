"""The five prompts of `ane-book bench`: the executor beside `transformers` behind OpenAI's API.

    python research/measurements/serving.py [NAME=URL ...]

Other servers may be named with their URLs, as llama.cpp's. All have the same weights to answer
with, rounded to fp16; what each makes of them is its own. Ratios alone are meant to be read: the
machine is shared.
"""

from pathlib import Path
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MODEL, bundle, record, reference_model
from _transformers_server import served, transformers_app
from ane_book.runtime import Session
from ane_serve.bench import InProcess, Server, measure

REPEATS, MOST = 2, 64  # answers to a prompt, tokens of an answer


def main() -> None:
    made = bundle()
    tokenizer = made.manifest.tokenizer
    session = Session(made, "fp16", "mil")
    others = [given.partition("=") for given in sys.argv[1:]]
    app = transformers_app(
        reference_model(), made.path / tokenizer.file, tokenizer.chat_template,
        tokenizer.eos_token_ids,
    )  # fmt: skip
    with served(app) as url:
        asked = [InProcess(session), Server(url), *(Server(place) for _, _, place in others)]
        names = ["executor fp16, in process", "transformers fp32, eager"]
        for one, name in zip(asked, [*names, *(name for name, _, _ in others)], strict=True):
            one.name, one.where = name, "" if one.where == url else one.where
        report = measure(asked, repeats=REPEATS, mark=500, max_tokens=MOST)
    print(report.text(100))
    facts = report.to_json()
    del facts["machine"]
    for subject in facts["subjects"]:
        del subject["where"]
    record("serving", {"model": MODEL, **facts})


if __name__ == "__main__":
    main()
