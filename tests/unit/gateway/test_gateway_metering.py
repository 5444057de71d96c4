"""What an answer cost, by the engines' own figures and without them."""

import json

import pytest
from covey_gateway.wire.metering import MAX_FIGURE, Cost, Meter, drop_usage
from covey_gateway.wire.request import Call


def event(**fields: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": []} | fields).encode()


def usage(prompt: int, completion: int, **more: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion} | more


def timings(cached: int, read: int, written: int) -> dict[str, object]:
    return {"cache_n": cached, "prompt_n": read, "predicted_n": written, "prompt_ms": 1.5}


def metered(*events: bytes, call: Call = Call.CHAT, n: int = 1, is_single: bool = True) -> Cost:
    meter = Meter(call, n, is_single=is_single)
    meter.begin(window_tokens=None)
    for each in events:
        meter.count(each)
    return meter.cost(99)


@pytest.mark.parametrize(
    ("events", "cost"),
    [
        ((event(usage=usage(7, 3)),), Cost(7, 0, 3)),
        ((event(usage=usage(7, 1)), event(usage=usage(7, 2))), Cost(7, 0, 2)),  # told again and again
        ((event(usage=usage(7, 3, prompt_tokens_details={"cached_tokens": 5})),), Cost(7, 5, 3)),
        ((event(usage=usage(7, 3, prompt_tokens_details=None)),), Cost(7, 0, 3)),
        ((event(timings=timings(30, 1, 5)),), Cost(31, 30, 5)),
        ((event(timings=timings(30, 1, 5), usage=usage(31, 5)),), Cost(31, 30, 5)),
        ((event(timings=timings(0, 31, 5)), event(timings=timings(30, 1, 4))), Cost(31, 0, 9)),  # two choices
    ],
)
def test_the_engines_own_figures_count(events: tuple[bytes, ...], cost: Cost) -> None:
    assert metered(event(choices=[{"delta": {"content": "x"}}]), *events, b"data: [DONE]\n\n") == cost


def told_so_far(index: int, *, end: str | None = None, **fields: object) -> bytes:
    """As llama-server does for `timings_per_token`."""
    return event(choices=[{"index": index, "finish_reason": end, "text": "x"}], **fields)


@pytest.mark.parametrize("ends_with_usage", [False, True])
@pytest.mark.parametrize("is_single", [False, True])
def test_figures_that_are_told_with_each_token_count_once(is_single: bool, ends_with_usage: bool) -> None:
    running = [told_so_far(0, timings=timings(0, 31, number)) for number in range(1, 51)]
    if ends_with_usage:
        end = told_so_far(0, end="stop") + event(timings=timings(0, 31, 50), usage=usage(31, 50))
    else:
        end = told_so_far(0, end="stop", timings=timings(0, 31, 50))
    assert metered(*running, end, is_single=is_single) == Cost(31, 0, 50)
    assert metered(*running, is_single=is_single) == Cost(31, 0, 50, is_estimated=True)


@pytest.mark.parametrize("ends_with_usage", [False, True])
def test_figures_that_are_told_with_each_token_count_once_for_each_choice(ends_with_usage: bool) -> None:
    lengths = (20, 35)
    running = [
        told_so_far(index, timings=timings(0, 31, number))
        for number in range(1, 36)
        for index, length in enumerate(lengths)
        if number <= length
    ]
    if ends_with_usage:
        ends = [told_so_far(0, end="stop") + event(timings=timings(0, 31, length)) for length in lengths]
    else:
        ends = [told_so_far(index, end="stop", timings=timings(0, 31, lengths[index])) for index in (0, 1)]
    assert metered(*running[:40], ends[0], *running[40:], ends[1], is_single=False) == Cost(31, 0, 55)
    assert metered(*running, ends[0], is_single=False) == Cost(31, 0, 55, is_estimated=True)


def test_several_prompts_are_each_counted_once_however_many_answers_follow() -> None:
    events = [event(timings=timings(0, prompt, 2)) for prompt in (3, 3, 5, 5)]
    assert metered(*events, call=Call.COMPLETION, n=2, is_single=False) == Cost(8, 0, 8)


def test_an_answer_that_broke_off_is_as_many_tokens_as_events() -> None:
    said = [event(choices=[{"delta": {"content": "x"}}]) for _ in range(5)]
    assert metered(event(choices=[{"delta": {"role": "assistant"}}]), *said) == Cost(99, 0, 5, is_estimated=True)
    counted = event(prompt_progress={"total": 40, "cache": 10, "processed": 12})
    assert metered(counted, *said) == Cost(40, 10, 5, is_estimated=True)


def test_figures_of_several_answers_may_be_anywhere() -> None:
    said = [event(choices=[{"delta": {"content": "x"}}]) for _ in range(50)]
    events = (event(timings=timings(0, 31, 5)), *said, event(timings=timings(30, 1, 4)))
    assert metered(*events, is_single=False) == Cost(31, 0, 9)
    assert metered(*said, event(timings=timings(30, 1, 4)), b": comment\n\n", b"data: [DONE]\n\n") == Cost(31, 30, 4)


def test_what_no_engine_took_costs_nothing() -> None:
    assert Meter(Call.CHAT).cost(99) == Cost()


def test_what_was_sent_costs_its_prompt_and_that_of_a_chat_no_more_than_the_window() -> None:
    for window, call, prompt in ((None, Call.CHAT, 99), (50, Call.CHAT, 50), (50, Call.EMBEDDING, 99)):
        meter = Meter(call)
        meter.begin(window)
        assert meter.cost(99) == Cost(prompt, 0, 0, is_estimated=True)


def test_tokens_that_are_only_counted_cost_nothing() -> None:
    meter = Meter(Call.COUNT)
    meter.begin(window_tokens=None)
    meter.read(b'{"input_tokens":1234}')
    assert meter.cost(99) == Cost()


@pytest.mark.parametrize("odd", [b'data: {"prompt_tokens"\n\n', event(usage=usage(1, 2) | {"prompt_tokens": "x"})])
def test_figures_that_are_none_are_left_to_who_tells_the_answer(odd: bytes) -> None:
    assert metered(odd).is_estimated


@pytest.mark.parametrize("figure", [-5, MAX_FIGURE + 1, 2**53 - 1, 2**80])
def test_figures_that_no_answer_has_are_none(figure: int) -> None:
    estimate = Cost(99, 0, 0, is_estimated=True)
    assert metered(event(usage=usage(figure, 3))) == estimate
    assert metered(event(usage=usage(7, figure))) == estimate
    assert metered(event(timings=timings(0, 31, figure))) == estimate
    assert metered(event(prompt_progress={"total": figure, "cache": 0})) == estimate


@pytest.mark.parametrize(("told", "cached"), [(-1, 0), (2**53, 7)])
def test_no_more_of_a_prompt_is_cached_than_it_has(told: int, cached: int) -> None:
    assert metered(event(usage=usage(7, 3, prompt_tokens_details={"cached_tokens": told}))) == Cost(7, cached, 3)


def test_words_of_an_answer_are_no_figures() -> None:
    said = event(choices=[{"delta": {"content": '"usage": {"prompt_tokens": 5, "predicted_n": 9}'}}])
    assert metered(said).is_estimated
    assert drop_usage(said) == said


def test_usage_that_nobody_asked_for_is_dropped_and_nothing_else_is() -> None:
    said = event(choices=[{"delta": {"content": "x"}, "finish_reason": "stop"}], usage=None)
    last = event(choices=[{"index": 0}], usage=usage(1, 2))  # an engine that has it in its last piece
    done = b"data: [DONE]\n\n"
    assert drop_usage(said + event(usage=usage(7, 3)) + done) == said + done
    assert drop_usage(said + last + done) == said + last + done
    assert drop_usage(event(usage=usage(7, 3))) == b""
