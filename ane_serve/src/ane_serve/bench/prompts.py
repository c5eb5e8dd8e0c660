"""Five prompts, tiny to stress: as long, and with answers about as long, as those of the benchmark
that the Qwen2.5 server on the engine came with (maderix/ANE, pull request 26), in our own words.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A prompt of the benchmark. max_tokens: of its answer, which may end earlier."""

    name: str
    text: str
    max_tokens: int

    def messages(self, mark: int) -> list[dict[str, str]]:
        """The conversation. mark: a number that no run before had.

        A server may have the beginning of an earlier prompt in its cache, and then no prefill is
        measured; with the mark near the beginning the cache is of no use.
        """
        system = {"role": "system", "content": f"{mark:03}. Be helpful."}
        return [system, {"role": "user", "content": self.text}]


PROMPTS = (
    Prompt("tiny", "Hi!", 10),
    Prompt("short", "What is seven times eight?", 16),
    Prompt("medium", "Explain in a few sentences why the sea is salty.", 84),
    Prompt("long", "Write a story about a lighthouse keeper who finds a letter in a bottle.", 200),
    Prompt(
        "stress",
        "A train leaves the harbour at nine in the morning with forty passengers. At the first "
        "stop twelve people leave it and seven get on, with two bicycles and a dog. At the second "
        "stop it waits for ten minutes, because a cow stands on the line, and three more people "
        "leave to walk home over the fields. At the last stop before the mountains a school class "
        "of eighteen children gets on with two teachers, who have brought apples for everyone on "
        "board. Without counting the dog, how many passengers arrive?",
        16,
    ),
)
