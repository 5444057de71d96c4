"""Chat requests: what passes, what is refused by name, and that nothing crashes the decoder."""

import json
from typing import Any

import msgspec
import pytest
from covey_api.reasons import ErrorCode
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.fields import PASSED, READ, REFUSED
from covey_gateway.wire.openai.passed import PassedChat, PassedChoices
from covey_gateway.wire.request import Request, render_request
from hypothesis import given
from hypothesis import strategies as st

MESSAGES = [{"role": "user", "content": "Hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES} | fields).encode()


def accepted(content: bytes) -> Request:
    request = parse_chat(content)
    assert isinstance(request, Request), request
    return request


def refused(content: bytes) -> ApiError:
    error = parse_chat(content)
    assert isinstance(error, ApiError), error
    assert error.status == 400
    return error


def sent(content: bytes, model: str = "the-model") -> dict[str, Any]:
    return json.loads(render_request(accepted(content), model, ""))


def test_a_smallest_request_is_asked_of_the_engine_as_a_stream_with_usage() -> None:
    assert not accepted(body()).wants_stream
    assert sent(body()) == {
        "model": "the-model",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2", 2**31])
def test_answers_are_a_whole_number_from_one(n: Any) -> None:
    assert refused(body(n=n)).param == "n"


def test_one_answer_that_is_asked_for_is_one() -> None:
    for n, is_single in ((None, True), (1, True), (2, False)):
        request = accepted(body(n=n, stream=True))
        assert request.is_single is is_single
        assert type(request.make_teller("m")) is (PassedChat if is_single else PassedChoices)
        assert sent(body(n=n)).get("n") == n


def test_a_stream_is_counted_whether_its_client_asks_or_not() -> None:
    """llama-server tells figures unasked; of others usage is asked for, and kept from who didn't."""
    for options in (None, {"include_usage": False}):
        content = body(stream=True, stream_options=options)
        assert accepted(content).withholds_usage
        assert sent(content)["stream_options"] == {"include_usage": True}
    request = accepted(body(stream=True))
    assert "stream_options" not in json.loads(render_request(request, "m", "LlamaServer"))
    options = {"include_usage": True, "include_obfuscation": False}
    asking = accepted(body(stream=True, stream_options=options))
    assert not asking.withholds_usage
    assert json.loads(render_request(asking, "m", ""))["stream_options"] == options


def test_the_smaller_of_both_token_limits_is_sent_under_one_name() -> None:
    content = sent(body(max_tokens=9, max_completion_tokens=7))
    assert content["max_tokens"] == 7
    assert "max_completion_tokens" not in content
    assert sent(body(max_completion_tokens=7))["max_tokens"] == 7
    assert "max_tokens" not in sent(body(max_tokens=None))


def test_tools_and_sampling_pass_as_they_came() -> None:
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "temperature": 0.2,
        "top_k": 40,
        "min_p": 0.05,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_object"},
        "metadata": {"a": "b"},
        "logit_bias": {"1": -100},
    }
    content = sent(body(**fields))
    assert {name: content[name] for name in fields} == fields


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_field_that_touches_what_all_share_is_refused_with_the_reason(name: str) -> None:
    error = refused(body(**{name: 1}))
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_FIELD, name)
    assert REFUSED[name] in error.message


def test_no_field_is_in_two_lists() -> None:
    assert not PASSED & READ
    assert not PASSED & REFUSED.keys()
    assert not READ & REFUSED.keys()


def test_an_unknown_field_is_the_models_to_refuse_with_the_nearest_known_one() -> None:
    request = accepted(body(temprature=1))
    assert request.unknown is not None
    assert request.unknown.code is ErrorCode.UNSUPPORTED_FIELD
    assert "did you mean `temperature`?" in request.unknown.message
    assert sent(body(temprature=1))["temprature"] == 1


def test_an_escaped_key_is_seen_for_what_it_is() -> None:
    assert refused(b'{"model":"m","messages":[{"role":"user"}],"id\\u005fslot":1}').param == "id_slot"


def test_a_repeated_key_reaches_the_engine_once() -> None:
    content = b'{"model":"a","model":"b","messages":[{"role":"user"}],"temperature":1,"temperature":2}'
    assert accepted(content).model == "b"
    assert render_request(accepted(content), "b", "").count(b"temperature") == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ],
)
def test_a_wrong_value_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'"x"',
        b"{",
        b"\xff",
        b'{"model":"m","messages":[{}]} x',
        b'{"model":NaN}',
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":' + b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(content: bytes) -> None:
    assert refused(content).code is ErrorCode.INVALID_REQUEST


def test_a_missing_field_is_named() -> None:
    assert refused(b"{}").param == "model"
    assert refused(b'{"model":"m"}').param == "messages"


def test_a_large_body_of_known_fields_passes() -> None:
    assert len(render_request(accepted(body(user="x" * 1_000_000)), "m", "")) > 1_000_000


@pytest.mark.parametrize("padding", [0, 1_000_000])
def test_unknown_fields_pass_however_large_the_body_is(padding: int) -> None:
    names = ["chat-mode", "", "a b", "class", "__x__", "ä", "`", *(f"k{number}" for number in range(9))]
    request = accepted(body(user="x" * padding, **dict.fromkeys(names, 1)))
    assert request.unknown is not None
    assert request.unknown.param == "chat-mode"
    assert {name: request.fields[name] for name in names} == dict.fromkeys(names, msgspec.Raw(b"1"))


def test_a_large_body_may_have_sixteen_unknown_fields() -> None:
    padding = "x" * 1_000_000
    many = body(user=padding, **{f"k{number}": None for number in range(17)})
    assert refused(many).param == "k0"
    for name in ("x" * 1000, 'quo"te', "back\\slash", "new\nline"):
        assert refused(body(user=padding, **{name: 1})).code is ErrorCode.UNSUPPORTED_FIELD


def test_a_large_body_of_many_keys_is_refused_at_the_first_unknown_one() -> None:
    content = b"{" + b",".join(b'"k%d":1' % number for number in range(100_000)) + b"}"
    assert refused(content).param == "k0"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
_names = st.sampled_from(sorted(READ | PASSED | REFUSED.keys())) | st.text(max_size=8)


@given(st.dictionaries(_names, _json, max_size=6))
def test_any_object_gives_a_request_or_an_error_that_can_be_sent(fields: dict[str, Any]) -> None:
    request = parse_chat(json.dumps(fields).encode())
    if isinstance(request, ApiError):
        assert request.status == 400
        request.message.encode()
    else:
        content = json.loads(render_request(request, "m", ""))
        assert content["stream"] is True
        assert content["model"] == "m"
        assert content["messages"] == fields["messages"]
        assert not content.keys() & REFUSED.keys()


@given(st.binary(max_size=200) | _json.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_an_answer(content: bytes) -> None:
    assert isinstance(parse_chat(content), ApiError | Request)
