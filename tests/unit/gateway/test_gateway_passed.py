"""A chat's stream as it is passed on: what engines write in their own way, as every client reads it."""

import json
from typing import Any

from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.request import Request, Teller
from covey_gateway.wire.sse import DONE, split_data

END = b"data: [DONE]\n\n"


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": list(choices)} | more).encode()


def delta(index: int = 0, **content: Any) -> dict[str, Any]:
    return {"index": index, "delta": content, "finish_reason": None}


def teller(**fields: Any) -> Teller:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True} | fields
    found = parse_chat(json.dumps(asked).encode())
    assert isinstance(found, Request)
    return found.make_teller("m")


def told(teller: Teller, *pieces: bytes) -> list[Any]:
    stream = b"".join(piece for piece in map(teller.take, pieces) if isinstance(piece, bytes)) + teller.end()
    return [data if data == DONE else json.loads(data) for data in split_data(stream)]


def test_usage_of_several_choices_is_one_sum_before_the_end() -> None:
    """llama-server's order: each choice ends with its own."""
    usages = [
        {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    ]
    pieces = [event(delta(index, content="a")) + event(usage=usage) for index, usage in enumerate(usages)]
    chunks = told(teller(n=2, stream_options={"include_usage": True}), *pieces, END)
    assert [chunk["choices"] for chunk in chunks[:2]] == [[delta(0, content="a")], [delta(1, content="a")]]
    assert chunks[2:] == [
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}},
        DONE,
    ]


def test_the_end_and_usage_in_one_piece_keep_their_order() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chunks = told(teller(n=1), event(delta(content="a")) + event(usage=usage) + END)
    assert chunks == [json.loads(event(delta(content="a"))[6:]), json.loads(event(usage=usage)[6:]), DONE]


def test_choices_that_tell_their_usage_beside_their_text_pass_untouched() -> None:
    """`continuous_usage_stats`."""
    piece = event(delta(content="a"), usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
    assert teller(n=2).take(piece) == piece


def test_thoughts_have_one_name_whatever_the_engine_calls_them() -> None:
    (chunk,) = told(teller(), event(delta(reasoning="Hm.")))
    assert chunk["choices"][0]["delta"] == {"reasoning_content": "Hm."}
    both = event(delta(reasoning="Hm.", reasoning_content="Hm."))
    assert teller().take(both) == both
    said = event(delta(content='the "reasoning" of it'))
    assert teller().take(said) == said
