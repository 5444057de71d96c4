"""Which conversation a request continues, and which endpoint a conversation belongs to."""

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from covey_gateway.routing.affinity import FEW, HOME_SECONDS, LOAD_BOUND, MAX_HOMES, Homes, bound_of, choose_home
from covey_gateway.routing.choose import choose_target
from covey_gateway.routing.conversation import BLOCK_BYTES, SHORT_BYTES, digest_conversation
from covey_gateway.routing.load import Load
from covey_gateway.routing.table import Target
from covey_gateway.wire.formats import HOT_PATHS
from covey_gateway.wire.request import Request
from hypothesis import given
from hypothesis import strategies as st

M = ("default", "m")


def parse(path: str, **fields: Any) -> Request:
    found = HOT_PATHS[path.encode()][1](json.dumps({"model": "m"} | fields).encode())
    assert isinstance(found, Request), found
    return found


def digest(path: str, session: bytes = b"", **fields: Any) -> int | None:
    return digest_conversation(parse(path, **fields), M, session)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(first: str, turns: int, system: str = "Be brief. " * 200) -> list[dict[str, Any]]:
    """Messages of a conversation with so many answers in it already."""
    told = [{"role": "system", "content": system}, user(first)]
    for turn in range(turns):
        told += [{"role": "assistant", "content": f"Answer {turn}."}, user(f"And {turn}?")]
    return told


CHAT = "/v1/chat/completions"


def test_every_turn_of_a_chat_is_of_one_conversation_and_no_other() -> None:
    for system in ("Be brief. " * 200, 'You said "assistant" and \\"role\\": "assistant". ' * 3000):
        found = {digest(CHAT, messages=chat("How?", turns, system)) for turns in range(6)}
        assert len(found) == 1
        assert found != {None}
        assert digest(CHAT, messages=chat("Why?", 2, system)) not in found


def test_another_spacing_of_json_finds_the_first_answer_too() -> None:
    texts = [json.dumps({"model": "m", "messages": chat("How?", turns)}, indent=2).encode() for turns in range(3)]
    parsed = [HOT_PATHS[CHAT.encode()][1](text) for text in texts]
    assert len({digest_conversation(one, M, b"") for one in parsed if isinstance(one, Request)}) == 1


def test_every_format_keeps_its_conversations() -> None:
    system = "Be brief. " * 200
    turns = [chat("How?", n)[1:] for n in range(4)]
    calls: dict[str, list[dict[str, Any]]] = {
        "/v1/messages": [{"system": system, "messages": one, "max_tokens": 9} for one in turns],
        "/v1/responses": [{"instructions": system, "input": one} for one in turns],
        "/api/chat": [{"messages": [{"role": "system", "content": system}, *one]} for one in turns],
        CHAT: [{"messages": [{"role": "system", "content": system}, *one]} for one in turns],
    }
    for path, requests in calls.items():
        found = {digest(path, **fields) for fields in requests}
        assert len(found) == 1, path
        assert None not in found, path


def test_what_only_looks_like_answers_hides_none_and_costs_no_more_than_other_text() -> None:
    def ask(decoys: str, turns: int) -> Request:
        system, *rest = chat("How?", turns)
        return parse(CHAT, messages=[system, rest[0] | {"seen": [decoys] * (800_000 // len(decoys))}, *rest[1:]])

    def measure(request: Request) -> float:
        def once() -> float:
            began = time.process_time()
            digest_conversation(request, M, b"")
            return time.process_time() - began

        return min(once() for _ in range(5))

    assert len({digest_conversation(ask("assistant", turns), M, b"") for turns in range(3)}) == 1
    assert measure(ask("assistant", 0)) < 20 * measure(ask("x" * 100, 0))


def test_what_is_short_belongs_nowhere_until_it_is_long() -> None:
    assert digest(CHAT, messages=[user("Hi")]) is None
    assert digest("/v1/completions", prompt="x" * (SHORT_BYTES - 2)) is not None
    assert digest("/v1/completions", prompt="x" * (SHORT_BYTES - 3)) is None
    grown = [user("Hi")]
    found: list[int | None] = []
    for turn in range(40):
        grown = [*grown, {"role": "assistant", "content": f"{turn} " * 20}, user("And?")]
        found.append(digest(CHAT, messages=grown))
    known = [one for one in found if one is not None]
    assert len(known) > 20
    assert len(set(known[1:])) == 1  # the first that is long enough may end before the answer that the rest end at


def test_a_prompt_of_text_is_known_by_its_first_block() -> None:
    text = "word " * 1000
    assert digest("/v1/completions", prompt=text) == digest("/v1/completions", prompt=text + " and more")
    assert digest("/v1/completions", prompt=text) != digest("/v1/completions", prompt="a " + text)


def test_calls_that_leave_nothing_in_a_cache_belong_nowhere() -> None:
    assert digest("/v1/embeddings", input="x" * 9000) is None
    assert digest("/v1/embeddings", session=b"s", input="x") is None


def test_a_session_that_the_client_names_is_the_conversation() -> None:
    one = digest(CHAT, session=b"s1", messages=[user("Hi")])
    assert one is not None
    assert one == digest(CHAT, session=b"s1", messages=chat("How?", 3))
    assert one != digest(CHAT, session=b"s2", messages=[user("Hi")])
    request = parse(CHAT, messages=[user("Hi")])
    assert one != digest_conversation(request, ("default", "other"), b"s1")
    assert one != digest_conversation(request, M, b"s1", "default/key"), "a session is its key's"


@pytest.mark.parametrize("system", ["", "Be brief. " * 200])
def test_what_changes_with_each_request_without_meaning_changes_no_conversation(system: str) -> None:
    def ask(number: int, turns: int) -> int | None:
        billing = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number:x};\n\n"
        messages = chat("How? " * 300, turns, billing + system)
        part: dict[str, Any] = {"type": "text", "text": messages[1]["content"]}
        if number % 2:
            part["cache_control"] = {"type": "ephemeral"}
        messages[1]["content"] = [part]
        return digest(CHAT, messages=messages)

    assert len({ask(number, turns) for number, turns in ((1, 0), (8, 1), (9999, 2), (10, 5))}) == 1


@given(st.lists(st.text(max_size=1500), min_size=1, max_size=8), st.integers(0, 3))
def test_growth_of_a_conversation_never_changes_it(texts: list[str], more: int) -> None:
    """Whatever is in it: once it was long enough when an answer began, that is where it is cut for ever."""
    told: list[dict[str, Any]] = []
    for text in texts:
        told += [user(text), {"role": "assistant", "content": text}]
    whole = [*told, user("x")]
    if len(json.dumps(told[:1])) - 2 < SHORT_BYTES:
        return
    grown = [*whole, *([{"role": "assistant", "content": "y"}, user("z")] * more)]
    assert digest(CHAT, messages=told[:1]) == digest(CHAT, messages=whole) == digest(CHAT, messages=grown)


def test_only_the_end_of_what_stays_is_hashed() -> None:
    start, end = "a" * 3 * BLOCK_BYTES, "How? " * 2 * BLOCK_BYTES
    assert digest(CHAT, messages=chat(end, 1, start)) == digest(CHAT, messages=chat(end, 3, "b" + start))


# Where it belongs


def target(id_: str, slots: int = 2, weight: int = 1) -> Target:
    return Target(id_, id_, "default", "m", "127.0.0.1", 1, "", slots, weight, None, True)


FOUR = [target(id_) for id_ in "abcd"]


class Driven:
    """Endpoints that get requests, and end them when told."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.homes = Homes()
        self.loads = {one.id: Load() for one in targets}
        self.now = 0.0

    def ask(self, conversation: int) -> str:
        chosen = choose_home(self.targets, self.loads, self.homes, conversation)
        self.homes.remember(conversation, chosen.id, self.now)
        self.loads[chosen.id].in_flight += 1
        return chosen.id

    def end(self, id_: str) -> None:
        self.loads[id_].in_flight -= 1


def test_a_conversation_stays_where_it_is_and_all_gateways_agree_on_where() -> None:
    one, other = Driven(FOUR), Driven(FOUR[::-1])
    for conversation in range(100, 104):
        homes = set[str]()
        for driven in (one, other, one, one):
            id_ = driven.ask(conversation)
            driven.end(id_)
            homes.add(id_)
        assert len(homes) == 1


def test_sixteen_conversations_fill_four_endpoints_evenly() -> None:
    driven = Driven(FOUR)
    for conversation in range(16):
        driven.end(driven.ask(conversation * 7919))
    assert max(driven.homes.count(one.id) for one in FOUR) <= LOAD_BOUND * 4


def test_an_endpoint_that_goes_moves_no_other_conversation_and_one_that_comes_takes_its_share() -> None:
    conversations = [n * 7919 for n in range(1000)]

    def place(targets: Sequence[Target]) -> dict[int, str]:
        return {one: choose_home(targets, {}, Homes(), one).id for one in conversations}

    before, after = place(FOUR), place(FOUR[:3])
    assert all(after[one] == home for one, home in before.items() if home != "d")
    assert max(Counter(before.values()).values()) < 310
    assert Counter(after.values())["a"] > 270


def test_size_says_how_many_conversations_are_an_endpoints() -> None:
    driven = Driven([target("a", slots=6), target("b", slots=2), target("c", slots=1, weight=2)])
    for conversation in range(500):
        driven.end(driven.ask(conversation * 7919))
    assert [driven.homes.count(one.id) for one in driven.targets] == pytest.approx([300, 100, 100], rel=0.25)


def test_one_conversation_asked_by_many_at_once_is_spread_within_the_bound() -> None:
    driven = Driven([target(id_, slots=8) for id_ in "abcd"])
    for _ in range(400):
        driven.ask(1)
    counts = [load.in_flight for load in driven.loads.values()]
    assert max(counts) <= math.ceil(LOAD_BOUND * 100)


def test_a_new_conversation_waits_behind_nobody_while_a_slot_is_free() -> None:
    for conversation in range(50):
        driven = Driven(FOUR)
        for id_ in "abc":
            driven.loads[id_].in_flight = 2
        assert driven.ask(conversation * 7919) == "d"


def test_who_is_over_its_bound_loses_a_conversation_to_the_least_outstanding() -> None:
    driven = Driven(FOUR)
    home = driven.ask(1)
    for one in FOUR:
        driven.loads[one.id].in_flight = 9 if one.id == home else 4
    least = next(one.id for one in FOUR if one.id != home)
    driven.loads[least].in_flight = 3
    assert driven.ask(1) == least
    assert driven.homes.find(1) == least


def test_silent_endpoint_is_passed_over_even_by_its_own_conversations() -> None:
    driven = Driven(FOUR)
    home = driven.ask(1)
    driven.loads[home].is_silent = True
    found = choose_target(FOUR, driven.loads, 0.0, 0, None, 1, driven.homes)
    assert isinstance(found, Target)
    assert found.id != home
    for load in driven.loads.values():
        load.is_silent = True
    again = choose_target(FOUR, driven.loads, 0.0, 0, None, 1, driven.homes)
    assert isinstance(again, Target)
    assert again.id == home


def test_homes_are_forgotten_with_their_endpoint_with_time_and_beyond_the_most() -> None:
    homes = Homes()
    homes.remember(1, "a", 0.0)
    homes.remember(2, "b", 0.0)
    homes.keep_only({"b"})
    assert (homes.find(1), homes.find(2), homes.count("a")) == (None, "b", 0)
    homes.remember(3, "b", HOME_SECONDS + 1)
    assert (homes.find(2), homes.count("b")) == (None, 1)
    for conversation in range(MAX_HOMES + 10):
        homes.remember(conversation, "c", HOME_SECONDS + 2)
    assert homes.count("b") + homes.count("c") == MAX_HOMES


def test_whoever_invents_conversations_displaces_its_own_alone() -> None:
    homes = Homes()
    kept = range(100)
    for conversation in kept:
        homes.remember(conversation, "a", 0.0, "default/modest")
    for conversation in range(1000, 1000 + 2 * MAX_HOMES):
        homes.remember(conversation, "b", 1.0, "default/greedy")
    assert all(homes.find(conversation) == "a" for conversation in kept)
    assert (homes.count("a"), homes.count("b")) == (100, MAX_HOMES - 100)
    assert homes.find(1000) is None
    homes.keep_only(())
    assert (homes.count("a"), homes.count("b"), homes.find(0)) == (0, 0, None)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=120),
)
def test_no_endpoint_has_more_than_its_bound_and_what_is_counted_is_true(
    sizes: list[tuple[int, int]], events: list[tuple[int, bool]]
) -> None:
    """Whatever comes and ends: the bound held when a request was sent."""
    driven = Driven([target(str(n), slots, weight) for n, (slots, weight) in enumerate(sizes)])
    size = sum(slots * weight for slots, weight in sizes)
    under_way: list[str] = []
    for conversation, is_end in events:
        if is_end and under_way:
            driven.end(under_way.pop(0))
            continue
        id_ = driven.ask(conversation)
        under_way.append(id_)
        chosen = next(one for one in driven.targets if one.id == id_)
        allowed = bound_of(chosen, LOAD_BOUND * len(under_way) / size)
        assert driven.loads[id_].in_flight <= max(allowed, min(chosen.slots, FEW))
        assert driven.homes.find(conversation) == id_
    homes = Counter(driven.homes.find(n) for n in range(21))
    assert all(driven.homes.count(one.id) == homes[one.id] for one in driven.targets)
