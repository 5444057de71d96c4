"""Text completions: what llama-server and vLLM each write, told in one shape."""

import json
from typing import Any

import pytest
from covey_gateway.wire.openai.texts import parse_completion
from covey_gateway.wire.request import Request, Teller

END = b"data: [DONE]\n\n"


def teller(**fields: Any) -> Teller:
    found = parse_completion(json.dumps({"model": "m", "prompt": "Hi"} | fields).encode())
    assert isinstance(found, Request)
    return found.make_teller("m")


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": list(choices)} | more).encode()


def choice(index: int, text: str = "a", **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": None} | more


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def answered(teller: Teller, *pieces: bytes) -> Any:
    for piece in pieces:
        assert teller.take(piece) == b""
    return json.loads(teller.end())


def test_a_prompt_counts_once_whether_each_choice_tells_it_or_all_together() -> None:
    each = [event(choice(index), usage=usage(10, 3)) for index in range(2)]
    together = [event(choice(0)), event(choice(1)), event(usage=usage(10, 6))]
    for pieces in (each, together):
        told = answered(teller(n=2), *pieces)["usage"]
        assert {name: told[name] for name in usage(10, 6)} == usage(10, 6)


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False, "include_obfuscation": True}, False),
        ({"include_obfuscation": True}, False),
        (None, False),
    ],
)
def test_usage_is_told_to_who_asks_for_it(options: Any, is_told: bool) -> None:
    stream = teller(stream=True, stream_options=options)
    stream.take(event(choice(0), usage=usage(1, 1)))
    assert (b'"usage"' in stream.end()) is is_told


def test_log_probabilities_in_the_older_shape_are_taken_as_they_are() -> None:
    older = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}
    told = answered(teller(logprobs=1), event(choice(0, logprobs=older)), event(choice(0, logprobs=older)))
    assert told["choices"][0]["logprobs"] == {name: values * 2 for name, values in older.items()}
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    told = answered(teller(logprobs=1), *[event(choice(0, logprobs={"content": [entry]}))] * 2)
    assert told["choices"][0]["logprobs"] == {name: values * 2 for name, values in older.items()} | {
        "text_offset": [0, 1]
    }
