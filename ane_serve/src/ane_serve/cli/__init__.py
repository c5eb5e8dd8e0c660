"""The commands `serve` and `bench` of `ane-book`."""

#: The variable of the API key, since every user of a machine sees its command lines.
KEY = "ANE_BOOK_API_KEY"
#: Options that are gone, and what takes their place.
GONE = {
    "serve --api-key": f"{KEY} in the environment has it, which other users do not see",
    "serve --log-texts": "create_app(models, texts=True) in Python writes texts into the log",
    "serve --force": "what failed parity is not served; convert the model again",
    "bench --api-key": f"{KEY} in the environment has it, which other users do not see",
    "bench --url-model": "--url NAME=URL names the model",
    "bench --force": "what failed parity is not timed; convert the model again",
    "bench --prompt": "--only names some of the five",
    **dict.fromkeys(
        (f"bench --{name}" for name in ("temperature", "top-p", "seed")),
        "every answer is greedy, since no draw changes what a token takes",
    ),
}

import ane_book.cli  # noqa: E402, F401  (it imports these commands, so it has to be there first)
