"""Pieces of several tool calls by turns, and engines that name nothing: each format's stream stays in its order."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from covey_gateway.wire.anthropic.answer import StreamedMessage
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.ollama.answer import ChatLines
from covey_gateway.wire.request import Request, Teller
from covey_gateway.wire.responses.request import parse_response
from kit.wiretap import read_events


def piece(delta: Any, finish: str | None = None, id_: str | None = "c1") -> bytes:
    named = {"id": id_} if id_ is not None else {}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: %b\n\n" % json.dumps(named | {"created": 1, "choices": choices}).encode()


def call(index: int, arguments: str = "", name: str = "") -> bytes:
    begun = {"id": f"call_{name}", "type": "function"} if name else {}
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return piece({"tool_calls": [{"index": index, **begun, "function": function}]})


BY_TURNS = [
    piece({"role": "assistant"}),
    piece({"content": "Two."}),
    call(0, name="f"),
    call(1, name="g"),
    call(0, '{"x":'),
    call(1, '{"y":'),
    call(0, "1}"),
    call(1, "2}"),
]
END = piece({}, "tool_calls")
CALLS = [("call_f", "f", {"x": 1}), ("call_g", "g", {"y": 2})]


def respond() -> Teller:
    request = parse_response(json.dumps({"model": "m", "input": "Hi", "stream": True}).encode())
    assert isinstance(request, Request)
    return request.make_teller("m")


def tell(teller: Teller, events: Iterable[bytes]) -> bytes:
    told: list[bytes] = []
    for event in events:
        found = teller.take(event)
        assert isinstance(found, bytes), found
        told.append(found)
    return b"".join(told) + teller.end()


def read_message(told: bytes) -> tuple[list[str], list[tuple[str, str, Any]]]:
    """The texts and the calls of a Messages stream, whose blocks must follow one another."""
    events = read_events(told)
    assert [event["type"] for event in (events[0], events[-2], events[-1])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    texts, calls, at = list[str](), list[tuple[str, str, Any]](), -1
    block: Any = None
    arguments = ""
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert (block, event["index"]) == (None, at + 1)
                block, at, arguments = event["content_block"], at + 1, ""
                if block["type"] == "text":
                    texts.append("")
            case "content_block_delta":
                assert (block is not None, event["index"]) == (True, at)
                texts[-1:] = [texts[-1] + event["delta"]["text"]] if "text" in event["delta"] else texts[-1:]
                arguments += event["delta"].get("partial_json", "")
            case _:
                assert (event["type"], event["index"]) == ("content_block_stop", at)
                if block["type"] == "tool_use":
                    calls.append((block["id"], block["name"], json.loads(arguments)))
                block = None
    assert block is None
    return texts, calls


def read_response(told: bytes) -> list[Any]:
    """The items of a Responses stream, each whole before the next begins and as the last event has them."""
    events = read_events(told)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    done: list[Any] = []
    begun = 0
    for event in events:
        if event["type"] == "response.output_item.added":
            begun += 1
            assert (event["output_index"], len(done)) == (begun - 1, begun - 1)
        elif event["type"] == "response.output_item.done":
            done.append(event["item"])
        elif "output_index" in event:
            assert event["output_index"] == begun - 1
    assert events[-1]["response"]["output"] == done
    return done


@pytest.mark.parametrize("last", [[END], []], ids=["finished", "ended"])
def test_calls_by_turns_are_told_whole_one_after_the_other(last: list[bytes]) -> None:
    events = [*BY_TURNS, *last]
    assert read_message(tell(StreamedMessage("m", 9), events)) == (["Two."], CALLS)
    said, *items = read_response(tell(respond(), events))
    assert said["content"][0]["text"] == "Two."
    assert [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in items] == CALLS
    lines = [json.loads(line) for line in tell(ChatLines("m", is_stream=True), events).splitlines()]
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in calls] == CALLS
    assert lines[-1]["done"] is True


def test_calls_that_follow_one_another_are_told_as_they_come() -> None:
    teller = StreamedMessage("m", 9)
    teller.take(call(0, '{"x":1}', name="f"))
    told = teller.take(call(1, '{"y":', name="g"))
    assert isinstance(told, bytes)
    assert [event["type"] for event in read_events(told)] == [
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
    ]
    late = [call(0, '{"x":1}', "f"), call(1, "{}", "g"), call(0, "\n")]
    assert read_message(tell(StreamedMessage("m", 9), late)) == ([], [CALLS[0], ("call_g", "g", {})])


def test_text_between_the_pieces_of_a_call_comes_after_it() -> None:
    events = [call(0, '{"x":', name="f"), piece({"content": "A"}), piece({"content": "B"}), call(0, "1}"), END]
    assert read_message(tell(StreamedMessage("m", 9), events)) == (["AB"], CALLS[:1])
    item, said = read_response(tell(respond(), events))
    assert (item["arguments"], said["content"][0]["text"]) == ('{"x":1}', "AB")


def test_a_whole_call_that_goes_on_is_the_engines_failure() -> None:
    for teller in (StreamedMessage("m", 9), respond()):
        for event in (call(0, '{"x":1}', name="f"), call(1, "{}", name="g")):
            assert isinstance(teller.take(event), bytes)
        found = teller.take(call(0, "2}"))
        assert isinstance(found, ApiError)
        assert "went on with a tool call" in found.message


def test_an_answer_without_an_id_begins_before_its_blocks() -> None:
    events = [piece({"content": "Hi"}, id_=None), piece({}, "stop", id_=None)]
    assert read_message(tell(StreamedMessage("m", 9), events)) == (["Hi"], [])
    told = tell(respond(), events)
    assert read_response(told)[0]["id"] == "msg_0_0"
    assert {event["response"]["id"] for event in read_events(told) if "response" in event} == {"resp_0"}
