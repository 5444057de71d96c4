"""One completion from a stream's chunks, for every way in which engines number and end things."""

import json
from typing import Any

from covey_api.reasons import ErrorCode
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.answer import ChatAnswer
from hypothesis import given
from hypothesis import strategies as st


def event(*choices: dict[str, Any], **fields: Any) -> bytes:
    chunk = {"id": "c1", "created": 5, "object": "chat.completion.chunk", "model": "engine's", "choices": choices}
    return b"data: " + json.dumps(chunk | fields).encode() + b"\n\n"


def text(content: str, index: int = 0) -> bytes:
    return event({"index": index, "delta": {"content": content}, "finish_reason": None})


def call(**delta: Any) -> bytes:
    return event({"index": 0, "delta": {"tool_calls": [delta]}})


def end(reason: str = "stop", index: int = 0) -> bytes:
    return event({"index": index, "delta": {}, "finish_reason": reason})


def assemble(*events: bytes) -> dict[str, Any]:
    answer = ChatAnswer("the-model")
    for one in (*events, b"data: [DONE]\n\n"):
        assert answer.take(one) == b""
    return json.loads(answer.end())


def message(*events: bytes) -> dict[str, Any]:
    return assemble(*events, end())["choices"][0]["message"]


def test_text_is_joined_and_the_model_is_the_models_name() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    role = event({"index": 0, "delta": {"role": "assistant", "content": None}})
    answer = assemble(role, text("Hel"), text("lo"), end("length"), event(usage=usage, system_fingerprint="b1"))
    assert answer == {
        "id": "c1",
        "object": "chat.completion",
        "created": 5,
        "model": "the-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": usage,
    }


def test_several_events_in_one_piece_count_each() -> None:
    assert message(text("a") + text("b"), text("c"))["content"] == "abc"


def test_no_text_is_an_empty_string_unless_there_are_calls() -> None:
    assert message(event({"index": 0, "delta": {"role": "assistant"}}))["content"] == ""
    assert message(call(index=0, id="x", function={"name": "f", "arguments": "{}"}))["content"] is None


def test_reasoning_and_refusal_are_kept_apart_from_the_text() -> None:
    pieces = [
        event({"index": 0, "delta": {"reasoning_content": "hm"}}),
        event({"index": 0, "delta": {"reasoning_content": "m"}}),
        text("4"),
    ]
    assert message(*pieces) == {"role": "assistant", "content": "4", "refusal": None, "reasoning_content": "hmm"}
    assert message(event({"index": 0, "delta": {"refusal": "no"}}))["refusal"] == "no"


def test_choices_come_in_the_order_of_their_index() -> None:
    answer = assemble(text("b", 1), text("a", 0), text("B", 1), end("stop", 1), end("length", 0))
    choices = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]]
    assert choices == [(0, "a", "length"), (1, "bB", "stop")]


def test_usages_of_several_choices_are_summed_and_their_prompt_counted_once() -> None:
    one = event(usage={"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12})
    two = event(usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    answer = assemble(text("a", 0), text("b", 1), one, two)
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}


def test_logprobs_are_collected() -> None:
    first = event({"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1}]}})
    second = event({"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [{"token": "b", "logprob": -2}]}})
    choice = assemble(first, second, end())["choices"][0]
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["a", "b"]
    assert choice["logprobs"]["refusal"] is None


def test_timings_of_the_last_chunk_are_kept() -> None:
    assert assemble(text("a"), event(timings={"predicted_n": 1}))["timings"] == {"predicted_n": 1}


def calls_of(*events: bytes) -> list[tuple[str, str, str]]:
    calls = message(*events)["tool_calls"]
    return [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls]


def test_tool_calls_with_indexes_are_joined_by_them() -> None:
    assert calls_of(
        call(index=0, id="x", type="function", function={"name": "f", "arguments": ""}),
        call(index=1, id="y", function={"name": "g", "arguments": "["}),
        call(index=0, function={"arguments": '{"a":'}),
        call(index=0, function={"arguments": "1}"}),
        call(index=1, function={"arguments": "]"}),
    ) == [("x", "f", '{"a":1}'), ("y", "g", "[]")]


def test_tool_calls_without_indexes_begin_with_an_id() -> None:
    assert calls_of(
        call(id="x", function={"name": "f", "arguments": "{"}),
        call(function={"arguments": "}"}),
        call(id="y", function={"name": "g", "arguments": "{}"}),
    ) == [("x", "f", "{}"), ("y", "g", "{}")]


def test_tool_calls_that_are_all_index_zero_are_kept_apart_by_their_ids() -> None:
    assert calls_of(
        call(index=0, id="x", function={"name": "f", "arguments": "{}"}),
        call(index=0, id="y", function={"name": "g", "arguments": "["}),
        call(index=0, function={"arguments": "]"}),
    ) == [("x", "f", "{}"), ("y", "g", "[]")]


def test_an_id_repeated_on_each_delta_is_one_call() -> None:
    assert calls_of(
        call(index=0, id="x", function={"name": "f", "arguments": "{"}),
        call(index=0, id="x", function={"arguments": "}"}),
    ) == [("x", "f", "{}")]


def test_a_legacy_function_call_is_joined() -> None:
    first = event({"index": 0, "delta": {"function_call": {"name": "f", "arguments": "{"}}})
    second = event({"index": 0, "delta": {"function_call": {"arguments": "}"}}})
    assert message(first, second)["function_call"] == {"name": "f", "arguments": "{}"}


def test_an_engines_error_event_is_an_error() -> None:
    answer = ChatAnswer("m")
    assert answer.take(text("a")) == b""
    error = answer.take(b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n')
    assert isinstance(error, ApiError)
    assert (error.status, error.code) == (502, ErrorCode.UPSTREAM_ERROR)
    assert "Context size has been exceeded." in error.message
    assert isinstance(ChatAnswer("m").take(b'error: {"error":{"message":"x"}}\n\n'), ApiError)
    assert isinstance(ChatAnswer("m").take(b'data: {"error":"bare words"}\n\n'), ApiError)


def test_what_is_no_chunk_is_an_error() -> None:
    for data in (b"hello", b"[1]", b'{"choices":3}', b'{"choices":[{"index":"a"}]}', b'"x"'):
        assert isinstance(ChatAnswer("m").take(b"data: " + data + b"\n\n"), ApiError), data


def test_comments_and_other_fields_are_ignored() -> None:
    assert message(b": keepalive 3/9\n\n", b"event: x\nid: 1\n" + text("a"))["content"] == "a"


@given(st.lists(st.text(max_size=20), max_size=10))
def test_any_text_survives(pieces: list[str]) -> None:
    assert message(*(text(piece) for piece in pieces), text(""))["content"] == "".join(pieces)
