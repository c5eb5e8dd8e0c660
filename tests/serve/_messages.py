"""A question to /v1/messages, asked by Anthropic's client, whole or in a stream."""

import pytest

MESSAGES = "/v1/messages"
ASK = [{"role": "user", "content": "Hello"}]
HELLO = {"model": "talker", "system": "Be kind.", "messages": ASK, "temperature": 0}
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def create(client, stream: bool = False, **asked):
    """The message, whole or put together by the client from a stream.

    The client has no arguments for sampling any more; the API has.
    """
    asked = {"max_tokens": 400, "messages": ASK, "temperature": 0} | asked
    own = {name: asked.pop(name) for name in ("temperature", "top_k", "top_p") if name in asked}
    asked["extra_body"] = own
    if not stream:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as events:
        return events.get_final_message()
