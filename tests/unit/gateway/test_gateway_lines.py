"""Lines before endpoints: whose turn is next, what a shared cache takes, who makes room."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from covey_api.messages import ModelState, Order, ServedModel
from covey_gateway import server
from covey_gateway.accounts import Accounts
from covey_gateway.limits import LEFT_POOL_SECONDS, OUTPUT_TOKENS
from covey_gateway.lines import Lines
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.line import Ticket
from covey_gateway.routing.refusals import refuse_pool
from covey_gateway.routing.reservation import plan_reservation
from covey_gateway.routing.table import Target, build_table
from covey_gateway.table import parse_table
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.wire.request import TEMPLATE_TOKENS, Call, Request

ENDPOINT = Target(
    id="e",
    instance_id="e",
    namespace="default",
    model="m",
    host="127.0.0.1",
    port=1,
    key="",
    slots=1,
    weight=1,
    context_tokens=None,
    confirmed=True,
    most_sent=1,
)


class Rig:
    def __init__(self, target: Target = ENDPOINT) -> None:
        self.target = target
        self.now = 0.0
        self.lines = Lines(lambda: self.now)
        self.sent: list[str] = []

    def enter(self, name: str, owner: str = "", priority: int = 0, tokens: int = 0) -> "Waiter":
        waiter = Waiter(self, name, Ticket(owner, priority, tokens))
        self.lines.enter(self.target, waiter, waiter.ticket)
        return waiter


class Waiter:
    def __init__(self, rig: Rig, name: str, ticket: Ticket) -> None:
        self.rig = rig
        self.name = name
        self.ticket = ticket

    def take_turn(self) -> None:
        self.rig.sent.append(self.name)

    def lose_place(self) -> None: ...

    def change_line(self) -> None: ...

    def end(self, *, is_left: bool = False) -> None:
        self.rig.lines.end(self.rig.target, self.ticket, is_left=is_left)

    def leave(self) -> None:
        self.rig.lines.leave(self.rig.target, self, self.ticket)


def test_no_more_are_sent_than_there_are_slots_and_the_next_goes_when_one_ends() -> None:
    rig = Rig()
    first, _, third = rig.enter("1"), rig.enter("2"), rig.enter("3")
    assert rig.sent == ["1"]
    third.leave()
    first.end()
    assert rig.sent == ["1", "2"]
    assert rig.lines.count_waiting("e") == 0


def test_keys_take_turns_however_many_requests_one_has() -> None:
    rig = Rig()
    under_way = rig.enter("g0", "greedy")
    greedy = [rig.enter(f"g{number}", "greedy") for number in range(1, 5)]
    modest = [rig.enter("m1", "modest"), rig.enter("m2", "modest")]
    for each in (under_way, greedy[0], modest[0], greedy[1], modest[1], greedy[2]):
        each.end()
    assert rig.sent == ["g0", "g1", "m1", "g2", "m2", "g3", "g4"]


def test_higher_priority_goes_first_and_also_past_one_that_does_not_fit() -> None:
    rig = Rig(replace(ENDPOINT, most_sent=8, kv_tokens=100))
    rig.enter("a", tokens=60)
    rig.enter("large", tokens=60)
    rig.enter("small", tokens=10)
    assert rig.sent == ["a"], "small ones don't overtake a large one for ever"
    rig.enter("urgent", priority=5, tokens=40)
    assert rig.sent == ["a", "urgent"]


def test_a_shared_cache_is_never_promised_twice() -> None:
    rig = Rig(replace(ENDPOINT, most_sent=8, kv_tokens=100))
    first, second = rig.enter("1", tokens=50), rig.enter("2", tokens=50)
    rig.enter("3", tokens=50)
    assert rig.sent == ["1", "2"]
    first.end(is_left=True)
    assert rig.sent == ["1", "2"], "the engine doesn't know yet that its client left"
    rig.now = LEFT_POOL_SECONDS
    rig.lines.look_again()
    assert rig.sent == ["1", "2", "3"]
    rig.enter("4", tokens=50)
    second.end()
    assert rig.sent == ["1", "2", "3", "4"]


def test_gateways_have_a_part_of_a_shared_cache_each_and_all_of_the_slots() -> None:
    rig = Rig(replace(ENDPOINT, most_sent=4, kv_tokens=100))
    rig.lines.sharers = 3
    assert rig.lines.pool_of(rig.target) == 33
    for name in ("1", "2", "3", "4"):
        rig.enter(name, tokens=11)
    assert rig.sent == ["1", "2", "3"]
    assert rig.lines.pool_of(ENDPOINT) == 0


def test_who_has_fewest_in_line_takes_the_place_of_who_has_most() -> None:
    rig = Rig()
    rig.enter("g0", "greedy")
    for number in range(1, 4):
        rig.enter(f"g{number}", "greedy")

    def displaced(owner: str, priority: int = 0) -> str | None:
        found = rig.lines.displace([rig.target], Ticket(owner, priority))
        return None if found is None else cast(Waiter, found).name

    assert displaced("greedy") is None
    assert displaced("modest", -1) is None
    assert displaced("modest") == "g3"
    rig.enter("m1", "modest")
    assert displaced("modest") is None, "it would have as many"
    assert displaced("greedy", 1) == "g2"


def test_an_idle_endpoint_leaves_nothing_behind() -> None:
    rig = Rig(replace(ENDPOINT, kv_tokens=100))
    rig.enter("1", tokens=10).end(is_left=True)
    rig.now = LEFT_POOL_SECONDS
    rig.enter("2", tokens=10).end()
    assert not rig.lines._lines  # pyright: ignore[reportPrivateUsage]  (a leak is what is asked)


# What is reserved


def request(call: Call = Call.CHAT, max_tokens: int | None = None, **fields: object) -> Request:
    given = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return Request(call, "m", given, cast(Any, None), max_tokens=max_tokens)


MESSAGES = [{"role": "user", "content": "x" * 100}]
SHARED = replace(ENDPOINT, kv_tokens=10_000)


def test_the_bytes_of_a_prompt_and_its_answer_are_reserved_as_often_as_there_are_answers() -> None:
    one = plan_reservation(request(max_tokens=50, messages=MESSAGES), SHARED, 10_000)
    prompt = one.tokens - 50
    assert 100 + TEMPLATE_TOKENS <= prompt <= 200 + TEMPLATE_TOKENS
    assert one.request.max_tokens == 50
    three = plan_reservation(request(max_tokens=50, messages=MESSAGES, n=3), SHARED, 10_000)
    assert three.tokens == 3 * (prompt + len(',"n":3') + 50)
    texts = plan_reservation(request(Call.COMPLETION, 5, prompt=["ab", "cd"]), SHARED, 10_000)
    single = plan_reservation(request(Call.COMPLETION, 5, prompt="ab"), SHARED, 10_000)
    tokens = plan_reservation(request(Call.COMPLETION, 5, prompt=[1, 2, 3]), SHARED, 10_000)
    assert texts.tokens > 2 * single.tokens > tokens.tokens


def test_a_request_without_a_bound_is_given_one_that_fits() -> None:
    roomy = plan_reservation(request(messages=MESSAGES), SHARED, 10_000)
    assert roomy.request.max_tokens == OUTPUT_TOKENS
    tight = plan_reservation(request(messages=MESSAGES), SHARED, 1500)
    assert tight.tokens == 1500
    assert tight.request.max_tokens == 1500 - (roomy.tokens - OUTPUT_TOKENS)
    assert plan_reservation(request(messages=MESSAGES), replace(SHARED, output_tokens=7), 1500).request.max_tokens == 7


def test_what_generates_nothing_reserves_its_prompt_alone() -> None:
    assert plan_reservation(request(Call.COUNT, messages=MESSAGES), SHARED, 1500).tokens == 0
    found = plan_reservation(request(Call.EMBEDDING, input="x" * 100), SHARED, 1500)
    assert (found.request.max_tokens, found.tokens >= 100 + TEMPLATE_TOKENS) == (None, True)


def test_an_image_takes_its_window_or_all_there_is() -> None:
    """How much one is nobody here knows, and its bytes don't tell."""
    large = [{"role": "user", "content": "x" * 100_000}]
    image = replace(request(max_tokens=1, messages=large), media="messages[0]")
    assert plan_reservation(image, SHARED, 5000).tokens == 5000
    assert plan_reservation(image, replace(SHARED, context_tokens=3000), 5000).tokens == 3001
    assert plan_reservation(replace(image, max_tokens=5000), SHARED, 5000).tokens > 5000, "never, whatever the image"
    unbounded = plan_reservation(replace(image, max_tokens=None), SHARED, 5000)
    assert (unbounded.tokens, unbounded.request.max_tokens) == (5000, OUTPUT_TOKENS)


def test_a_refusal_names_the_prompt_where_that_alone_is_too_much() -> None:
    def refused(asked: Request, pool: int) -> tuple[str | None, str]:
        found = plan_reservation(asked, SHARED, pool)
        assert found.tokens > pool
        error = refuse_pool("m", asked, found.tokens, found.prompt_tokens, pool)
        return error.param, error.message

    long = replace(request(max_tokens=5, input="x" * 5000), prompt_field="input", limit_field="max_output_tokens")
    assert refused(long, 4000)[0] == "input"
    param, words = refused(replace(long, max_tokens=5000), 8000)
    assert (param, "`max_output_tokens`" in words, "`max_tokens`" in words) == ("max_output_tokens", True, False)
    assert refused(request(messages=[{"role": "user", "content": "x" * 5000}]), 4000)[0] == "messages"


def test_what_the_engine_counted_takes_the_place_of_the_bound_by_bytes() -> None:
    text = request(messages=[{"role": "user", "content": "x" * 9000}])
    assert plan_reservation(text, SHARED, 5000).tokens > 5000
    found = plan_reservation(text, SHARED, 5000, 3000)
    assert (found.tokens, found.prompt_tokens, found.request.max_tokens) == (3008 + 1024, 3000, 1024)
    twice = plan_reservation(replace(text, n=2, max_tokens=100), SHARED, 5000, 2000)
    assert twice.tokens == 2 * (2008 + 100)
    error = refuse_pool("m", text, 5001, 4995, 5000, is_counted=True)
    assert error.param == "messages"
    assert "comes to 4995 tokens;" in error.message


# Where the numbers come from


def test_a_static_table_bounds_what_is_sent_where_it_says_how_many_slots_there_are() -> None:
    endpoints = [{"url": "http://h:1"}, {"url": "http://h:2", "slots": 2, "kvTokens": 4096}]
    model = {"name": "m", "outputTokens": 9, "endpoints": endpoints}
    table = parse_table(msgspec.json.encode({"models": [model]}), "t")
    free, bound = table.targets["default", "m"]
    assert (free.slots, free.kv_tokens, free.most_sent > 1000) == (4, 0, True)
    assert (bound.most_sent, bound.kv_tokens, bound.output_tokens) == (2, 4096, 9)


@pytest.mark.parametrize(("gateways", "own", "sharers"), [((), "", 1), (("a", "b", "c"), "a", 3), (("a", "b"), "c", 3)])
def test_gateways_that_are_named_share(gateways: tuple[str, ...], own: str, sharers: int) -> None:
    model = ServedModel(namespace="default", name="m", aliases=(), tasks=("Chat",), state=ModelState.READY)
    table = build_table(Order(term=1, serial=1), [model], [ENDPOINT], [], gateways)
    accounts = Accounts(lambda: 0.0, lambda: 0.0)
    accounts.name_gateway(own, table)
    assert accounts.count_sharers(table) == sharers


def test_what_the_last_client_left_is_given_back_before_the_gateway_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.001)

    async def run() -> None:
        loop, now = asyncio.get_running_loop(), [0.0]
        traffic = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), lambda: now[0])
        made = server.GatewayServer(traffic, Engines(loop, cast(Any, loop.create_task)), cast(Any, None))
        pooled, ticket = replace(ENDPOINT, kv_tokens=100), Ticket("ann", 0, 60)
        assert traffic.lines.enter_at_once(pooled, ticket)
        traffic.lines.end(pooled, ticket, is_left=True)
        cast(Any, made)._accepted.set()
        sweep = loop.create_task(made.sweep())
        await asyncio.sleep(0.05)
        assert traffic.lines.has_any
        now[0] = LEFT_POOL_SECONDS
        for _ in range(3000):
            if cast(Any, made)._is_resting:
                break
            await asyncio.sleep(0.01)
        assert cast(Any, made)._is_resting
        assert not traffic.lines.has_any
        sweep.cancel()

    asyncio.run(run())
