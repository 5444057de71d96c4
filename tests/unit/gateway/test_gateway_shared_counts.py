"""What workers of one gateway share, each as a view of the same memory, without processes."""

import os
import random
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from covey_api.messages import ClientKey, Demand, EndpointDemand, KeySpent, ModelDemand, ModelState, Order, ServedModel
from covey_api.reasons import ErrorCode
from covey_gateway.figures import MAX_MODELS, OTHER_MODEL, Figures
from covey_gateway.limits import FAILURES_ASIDE
from covey_gateway.lines import Lines
from covey_gateway.records import Record
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.line import Ticket
from covey_gateway.routing.quotas import DAY_SECONDS, Limits, Quota, Window
from covey_gateway.routing.table import Key, RoutingTable, Target, parse_key
from covey_gateway.traffic import Traffic
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Cost
from covey_gateway.workers import memory as memories
from covey_gateway.workers.endpoints import STUCK_SECONDS
from covey_gateway.workers.hired import make_wakes
from covey_gateway.workers.keys import SharedWindow
from covey_gateway.workers.memory import Memory, make_file
from covey_gateway.workers.shared import Shared, clear_levels, clear_reservations, share
from covey_gateway.workers.whole import Whole

HASH = "sha256:" + "a" * 64
NOON = 20_000 * DAY_SECONDS + DAY_SECONDS / 2
OPEN = AccessPolicy(needs_local_origin=False, needs_key=False)
MODEL = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)


def key(hash_: str = HASH, **limits: int) -> Key:
    return parse_key(ClientKey.model_validate({"namespace": "default", "name": "ann", "hash": hash_} | limits))


@dataclass
class Office:
    """Workers' views, and the parent's."""

    now: float = 1000.0
    workers: int = 3
    memories: list[Memory] = field(default_factory=list[Memory])
    shared: list[Shared] = field(default_factory=list[Shared])
    """The parent's is the last."""

    def __post_init__(self) -> None:
        self.file = make_file()
        self.wakes = make_wakes(self.workers)
        for column in (*range(self.workers), None):
            self.view(column)

    def view(self, column: int | None) -> Shared:
        """As a process that is started now has it."""
        memory = Memory(self.file, self.workers, column)
        self.memories.append(memory)
        self.shared.append(share(memory, tuple(write for _, write in self.wakes), lambda: self.now))
        return self.shared[-1]

    def woken(self) -> list[int]:
        """Columns that were woken since it was asked last."""
        found: list[int] = []
        for column, (read, _) in enumerate(self.wakes):
            try:
                os.read(read, 100)
            except BlockingIOError:
                continue
            found.append(column)
        return found

    def close(self) -> None:
        os.close(self.file)
        for pair in self.wakes:
            for each in pair:
                os.close(each)


@pytest.fixture
def office() -> Generator[Office]:
    made = Office()
    try:
        yield made
    finally:
        made.close()


def test_a_row_is_the_same_for_all_and_its_columns_are_their_own(office: Office) -> None:
    rows = [memory.row("a", 2, 3) for memory in office.memories]
    rows[0].columns[0][2] += 5
    rows[2].columns[2][2] += 7
    rows[1].floats[1][0] += 0.5
    rows[1].common[1] = 9
    assert [row.sum(2) for row in rows] == [12] * 4
    assert [row.sum_floats(0) for row in rows] == [0.5] * 4
    assert [row.common[1] for row in rows] == [9] * 4
    assert office.memories[3].find("a")
    assert not office.memories[0].find("b")


def test_rows_made_by_several_at_a_time_do_not_overlap(office: Office) -> None:
    for number in range(200):
        for at, memory in enumerate(office.memories):
            memory.row(f"{number} {at}", 1, 2).common[0] = 1000 * number + at
            memory.row(f"both {number}", 3, 1)
    found = [memory.row(f"{n} {at}", 1, 2).common[0] for n in range(200) for at, memory in enumerate(office.memories)]
    assert found == [1000 * n + at for n in range(200) for at in range(4)]
    assert len(set(office.memories[0].names("both "))) == 200


def test_a_full_memory_counts_each_worker_alone(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    first = office.memories[0]
    first.row("old", 1, 1)
    monkeypatch.setattr(memories, "_CELLS_BYTES", 64)
    row = first.row("new", 1, 1)
    row.common[0] = 1
    with row.lock:
        assert office.memories[1].row("new", 1, 1).common[0] == 0
    assert office.memories[1].find("old")


@pytest.mark.parametrize("seed", range(8))
def test_a_shared_minute_is_a_minute(office: Office, seed: int) -> None:
    """The same as one process has it, whoever adds and asks; also where a worker's clock is a little behind."""
    chance = random.Random(seed)
    windows = [SharedWindow(memory.row("w", 67, 0).common) for memory in office.memories]
    expected, now = Window(), 5000.0
    for _ in range(600):
        now += chance.choice((0.0, 0.2, 0.9, 1.0, 7.0, 61.0)) * chance.random()
        count = chance.randrange(1, 50)
        if chance.random() < 0.5:
            chance.choice(windows).add(count, now)
            expected.add(count, now)
        total = expected.look(now)
        assert {window.look(now) for window in windows} == {total}
        if total:
            left = chance.choice((0, total // 2, total - 1))
            assert chance.choice(windows).frees_after(left, now) == expected.frees_after(left, now)


def test_a_key_of_one_request_at_a_time_has_one_at_all_workers(office: Office) -> None:
    one, other, parent = (office.shared[at].keys.quota(HASH, 0) for at in (0, 1, 3))
    limits = Limits(concurrency=1)
    assert one.admit(limits, 1.0, NOON) is None
    assert (spent := other.admit(limits, 1.0, NOON)) is not None
    assert spent.limit == "concurrency"
    one.end()
    assert other.admit(limits, 1.0, NOON) is None
    assert one.admit(limits, 1.0, NOON) is not None
    assert parent.in_flight == 0


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(requests_per_minute=3), "requestsPerMinute"),
        (Limits(tokens_per_minute=30), "tokensPerMinute"),
        (Limits(tokens_per_day=30), "tokensPerDay"),
    ],
)
def test_limits_are_those_of_one_process(office: Office, limits: Limits, name: str) -> None:
    quotas, alone = [each.keys.quota(HASH, 0) for each in office.shared[:3]], Quota()
    for number in range(3):
        assert quotas[number].admit(limits, 10.0 + number, NOON) is None
        assert alone.admit(limits, 10.0 + number, NOON) is None
        quotas[number].end()
        quotas[number].charge(limits, 10, 11.0 + number, NOON)
        alone.charge(limits, 10, 11.0 + number, NOON)
    found = [quota.admit(limits, 14.0, NOON) for quota in quotas]
    assert found == [alone.admit(limits, 14.0, NOON)] * 3
    assert found[0] is not None
    assert found[0].limit == name
    assert {quota.allowances(limits, 14.5) for quota in quotas} == {alone.allowances(limits, 14.5)}


def test_the_controllers_word_of_the_day_is_for_all_and_a_new_day_begins_at_zero(office: Office) -> None:
    one, other, parent = (office.shared[at].keys.quota(HASH, 0) for at in (0, 1, 3))
    limits, day = Limits(tokens_per_day=100), int(NOON) // 86_400
    one.charge(limits, 30, 1.0, NOON)
    assert parent.look_spent() == 30
    parent.hear_fleet(day, 90, 30, NOON)
    assert other.admit(limits, 1.0, NOON) is None
    other.charge(limits, 10, 1.0, NOON)
    assert one.admit(limits, 1.0, NOON) is not None
    assert one.admit(limits, 1.0, NOON + 86_400) is None


def accounts_of(shared: Shared, office: Office, **limits: int) -> Traffic:
    found = Traffic(OPEN, lambda: office.now, lambda: NOON, shared)
    parsed = key(HASH, **limits)
    found.accounts.apply_table(RoutingTable(keys={parsed.digest: parsed}))
    return found


def test_usage_of_all_workers_is_told_once_by_the_parent_and_goes_on_after_a_death(office: Office) -> None:
    workers = [accounts_of(each, office).accounts for each in office.shared[:3]]
    parent = accounts_of(office.shared[3], office, tokens_per_day=1000).accounts
    record = Record("POST", "/", "r", 0.0, key="default/ann", cost=Cost(3, 1, 2))
    for accounts in (*workers, workers[0]):
        accounts.charge(record)
    (usage,) = parent.observe_usage()
    assert (usage.requests, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (4, 12, 4, 8)
    parent.confirm_usage((usage,), (KeySpent(hash=usage.hash, day=int(NOON) // 86_400, tokens=20),))
    assert parent.observe_usage() == ()
    clear_levels(office.memories[3], 0)
    accounts_of(office.view(0), office).accounts.charge(record)
    (usage,) = parent.observe_usage()
    assert usage.requests == 5


def test_a_key_that_was_made_anew_begins_at_zero_and_what_is_under_way_ends_with_it(office: Office) -> None:
    traffic = accounts_of(office.shared[0], office, concurrency=2)
    assert traffic.accounts.begin("default/ann") is None
    anew = key("sha256:" + "b" * 64, concurrency=2)
    traffic.accounts.apply_table(RoutingTable(keys={anew.digest: anew}))
    old_hash = f"sha256:{key('ann').digest.hex()}"
    assert office.shared[1].keys.quota(old_hash, 0).admit(Limits(concurrency=1), 1.0, NOON) is None
    new_hash = f"sha256:{anew.digest.hex()}"
    assert office.shared[1].keys.quota(new_hash, 0).admit(Limits(concurrency=1), 1.0, NOON) is not None
    traffic.accounts.end("default/ann")
    assert office.shared[2].keys.quota(new_hash, 0).admit(Limits(concurrency=1), 1.0, NOON) is None


def test_figures_of_all_workers_are_those_of_one(office: Office) -> None:
    alone, chance = Figures(), random.Random(1)
    for number in range(60):
        record = Record(
            *("POST", "/", "r", 0.0),
            format="openai",
            model=chance.choice(("", "m", "n")),
            namespace=chance.choice(("default", "team")),
            status=chance.choice((200, 429, 499)),
            limit=chance.choice(("", "concurrency")),
            sent_at=chance.choice((None, 0.1)),
            first_byte_at=0.5,
            last_byte_at=2.0,
            ended_at=chance.random() * 100,
            cost=Cost(3, 1, chance.randrange(5)),
        )
        alone.add(record)
        office.shared[number % 3].figures.add(record)
    alone.count_ejection("default", "m")
    office.shared[1].figures.count_ejection("default", "m")
    for each in office.shared:
        whole = each.figures.whole()
        assert whole.limited == alone.limited
        assert whole.models.keys() == alone.models.keys()
        for label, expected in alone.models.items():
            found = whole.models[label]
            assert found.requests == expected.requests
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "ejections"):
                assert getattr(found, name) == getattr(expected, name)
            for name in ("held", "first_token", "token_interval", "duration"):
                assert getattr(found, name).counts == getattr(expected, name).counts
                assert getattr(found, name).total == pytest.approx(getattr(expected, name).total)


def test_a_model_beyond_those_that_are_told_of_is_looked_for_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, memory = office.shared[0].figures, office.memories[0]
    for number in range(MAX_MODELS):
        figures.count_ejection("default", f"m{number}")
    figures.count_ejection("default", "one-more")

    def fail(*_: object) -> None:
        raise AssertionError("all names are walked again")

    monkeypatch.setattr(memory, "names", fail)
    figures.count_ejection("default", "one-more")
    monkeypatch.undo()
    whole = office.shared[1].figures.whole()
    assert whole.models[OTHER_MODEL].ejections == 2
    assert whole.models["m7"].ejections == 1


class Asked:
    """A member of a line."""

    def __init__(self, lines: Lines, target: Target, priority: int = 0, tokens: int = 0) -> None:
        self.is_sent = False
        self._lines, self._target, self._ticket = lines, target, Ticket("ann", priority, tokens)
        lines.enter(target, self, self._ticket)

    def take_turn(self) -> None:
        self.is_sent = True

    def lose_place(self) -> None: ...

    def change_line(self) -> None: ...

    def end(self, *, is_left: bool = False) -> None:
        self._lines.end(self._target, self._ticket, is_left=is_left)

    def leave(self) -> None:
        self._lines.leave(self._target, self, self._ticket)


def make_target(slots: int, kv_tokens: int = 0) -> Target:
    return Target(
        *("i", "i", "default", "m", "127.0.0.1", 1, ""),
        slots,
        1,
        None,
        confirmed=True,
        most_sent=slots,
        kv_tokens=kv_tokens,
    )


def lines_of(office: Office) -> list[Lines]:
    for each in office.shared:
        each.endpoints.tell_process(1, 0, 0)
    return [Lines(lambda: office.now, each.endpoints.line) for each in office.shared[:3]]


def test_slots_are_those_of_all_workers_and_who_came_first_is_next(office: Office) -> None:
    a, b, c = lines_of(office)
    target = make_target(2)
    first, second = Asked(a, target), Asked(b, target)
    office.now += 1
    third = Asked(c, target)
    office.now += 1
    fourth = Asked(a, target)
    assert [each.is_sent for each in (first, second, third, fourth)] == [True, True, False, False]
    assert [each.endpoints.count_all("i")[1] for each in office.shared] == [2] * 4
    first.end()  # at the worker where the fourth waits: the third came before
    assert not fourth.is_sent
    assert office.woken() == [2]
    c.look_again()
    assert third.is_sent
    assert office.woken() == []
    second.end()
    assert office.woken() == [0]
    a.look_again()
    assert fourth.is_sent
    third.end()
    fourth.end()
    assert Asked(b, target).is_sent


def test_a_higher_priority_goes_first_at_whatever_worker(office: Office) -> None:
    a, b, c = lines_of(office)
    target = make_target(1)
    first, low = Asked(a, target), Asked(b, target)
    office.now += 1
    high = Asked(c, target, priority=5)
    first.end()
    assert office.woken() == [2]
    b.look_again()
    assert not low.is_sent
    assert office.woken() == [2]
    c.look_again()
    assert high.is_sent
    high.end()
    assert office.woken() == [1]


def test_one_that_leaves_its_line_holds_nobody_back(office: Office) -> None:
    a, b, _ = lines_of(office)
    target = make_target(1)
    first, second = Asked(a, target), Asked(b, target)
    office.now += 1
    third, fourth = Asked(a, target), Asked(b, target)
    second.leave()
    first.end()
    assert third.is_sent
    third.end()
    assert office.woken() == [1]
    b.look_again()
    assert fourth.is_sent


def test_a_stuck_worker_holds_nobody_back(office: Office) -> None:
    a, b, _ = lines_of(office)
    target = make_target(1)
    first, second = Asked(a, target), Asked(b, target)
    office.now += STUCK_SECONDS + 1
    office.shared[0].endpoints.tell_process(1, 0, 0)
    third = Asked(a, target)
    first.end()
    assert third.is_sent
    assert not second.is_sent


def test_a_shared_cache_is_one_for_all_workers_also_what_was_left_and_what_a_dead_one_had(office: Office) -> None:
    a, b, c = lines_of(office)
    target = make_target(4, kv_tokens=100)
    first = Asked(a, target, tokens=60)
    second = Asked(b, target, tokens=60)
    assert (first.is_sent, second.is_sent) == (True, False)
    first.end(is_left=True)
    b.look_again()
    assert not second.is_sent  # the engine doesn't know yet
    office.now += 3
    a.look_again()
    assert office.woken() == [1]
    b.look_again()
    assert second.is_sent
    third = Asked(c, target, tokens=60)
    assert clear_levels(office.memories[3], 1)  # its process is dead
    c.look_again()
    assert not third.is_sent
    clear_reservations(office.memories[3], 1)
    c.look_again()
    assert third.is_sent
    assert not clear_levels(office.memories[3], 0)


def test_endpoints_are_chosen_by_what_all_workers_have_there(office: Office) -> None:
    targets = [make_target(4), Target(*("j", "j", "default", "m", "127.0.0.1", 2, ""), 4, 1, None, confirmed=True)]
    table = RoutingTable(targets={("default", "m"): tuple(targets)})
    taken: list[str] = []
    for each in office.shared[:3]:
        traffic = Traffic(OPEN, lambda: office.now, lambda: NOON, each)
        traffic.apply_table(table)
        for _ in range(2):
            found = traffic.take(MODEL, None)
            assert isinstance(found, Target)
            taken.append(found.id)
    assert sorted(taken) == ["i", "i", "i", "j", "j", "j"]


@dataclass
class Worker:
    applied: Order | None
    report: Demand | None
    reported_at: float


class SomeStaff:
    def __init__(self, *workers: Worker) -> None:
        self.workers = workers

    def observe(self) -> tuple[Worker, ...]:
        return self.workers

    def tell_name(self, name: str) -> None: ...

    def end_everywhere(self, cancel: object, *, by_operator: bool) -> None: ...


def test_the_controller_hears_of_one_gateway(office: Office) -> None:
    def report(applied: Order, *endpoints: EndpointDemand, held: int = 0) -> Demand:
        models = (ModelDemand(namespace="default", name="n", held=held, oldest_seconds=held * 1.0),) if held else ()
        return Demand(gateway="", address="", applied=applied, endpoints=endpoints, models=models)

    old, new = Order(term=1, serial=1), Order(term=1, serial=2)
    busy = EndpointDemand(instance_id="i", in_flight=2, last_byte_seconds=1.0)
    aside = EndpointDemand(instance_id="i", in_flight=1, unreachable=True, oldest_silent_seconds=7.0)
    staff = SomeStaff(
        Worker(old, report(old, busy, held=2), office.now - 3),
        Worker(new, report(new, aside, held=1), office.now - 1),
    )
    whole = Whole(OPEN, lambda: office.now, office.shared[3], staff)
    assert whole.observe_applied() is None
    whole.apply_table(RoutingTable(order=new))
    assert whole.observe_applied() == old
    (found,) = whole.observe_demand()
    assert (found.in_flight, found.unreachable, found.last_byte_seconds) == (3, True, 4.0)
    assert found.oldest_silent_seconds == 8.0
    (model,) = whole.observe_models()
    assert (model.held, model.oldest_seconds) == (3, 5.0)
    staff.workers = (Worker(new, None, 0.0), staff.workers[1])
    assert whole.observe_applied() == new
    staff.workers = (Worker(None, None, 0.0),)
    assert whole.observe_applied() is None


def traffics(office: Office) -> list[Traffic]:
    """Of each worker, with two endpoints of one model."""
    targets = tuple(
        Target(id_, id_, "default", "m", "127.0.0.1", port, "", 4, 1, None, confirmed=True)
        for port, id_ in enumerate(("i", "j"))
    )
    made = [Traffic(OPEN, lambda: office.now, lambda: NOON, each) for each in office.shared[:3]]
    for each in made:
        each.apply_table(RoutingTable(targets={("default", "m"): targets}))
    return made


def take_all(made: list[Traffic], times: int = 4) -> list[tuple[Traffic, Target]]:
    found: list[tuple[Traffic, Target]] = []
    for _ in range(times):
        for each in made:
            one = each.take(MODEL, None)
            assert isinstance(one, Target)
            found.append((each, one))
    return found


def at(found: list[tuple[Traffic, Target]], id_: str) -> list[tuple[Traffic, Target]]:
    return [(worker, one) for worker, one in found if one.id == id_]


def end_all(found: list[tuple[Traffic, Target]]) -> None:
    for worker, one in found:
        worker.release(one)


def test_what_one_worker_sets_aside_no_other_asks_and_one_request_of_all_tries_it(office: Office) -> None:
    made = traffics(office)
    first = take_all(made)
    worker, one = at(first, "i")[0]
    worker.release(one, refused="it took no connection")
    first.remove((worker, one))
    assert not at(take_all(made), "i")
    office.now += 1
    (tried,) = at(take_all(made), "i")
    end_all(first)
    office.now += 100
    assert not at(take_all(made), "i")
    assert [each.unreachable for worker in made for each in worker.observe_demand() if each.instance_id == "i"]
    tried[0].confirm(tried[1])
    assert {worker for worker, _ in at(take_all(made, 16), "i")} == set(made)
    assert not any(each.unreachable for worker in made for each in worker.observe_demand())


def test_failures_in_a_row_are_those_at_all_workers(office: Office) -> None:
    made = traffics(office)
    error = ApiError(502, ErrorCode.UPSTREAM_ERROR, "it failed")
    failing = at(take_all(made), "i")[:FAILURES_ASIDE]
    for worker, one in failing[:-1]:
        worker.fail(one, error)
        assert at(take_all(made), "i")
    failing[-1][0].fail(failing[-1][1], error)
    assert not at(take_all(made), "i")
    office.now += 1
    (tried,) = at(take_all(made), "i")
    tried[0].succeed(tried[1])
    tried[0].release(tried[1])
    assert at(take_all(made), "i")


def test_a_worker_that_dies_while_it_tries_an_endpoint_leaves_that_to_another(office: Office) -> None:
    made = traffics(office)
    worker, one = at(take_all(made), "i")[0]
    worker.release(one, refused="it took no connection")
    office.now += 1
    (tried,) = at(take_all(made), "i")
    clear_levels(office.memories[3], made.index(tried[0]))  # its process is dead
    others = [each for each in made if each is not tried[0]]
    assert len(at(take_all(others), "i")) == 1


def test_an_endpoint_that_comes_back_under_its_name_is_not_set_aside(office: Office) -> None:
    made = traffics(office)
    found = take_all(made)
    worker, one = at(found, "i")[0]
    worker.release(one, refused="it took no connection")
    found.remove((worker, one))
    end_all(found)
    for each in made:
        targets = each.table.targets
        each.apply_table(RoutingTable())
        each.apply_table(RoutingTable(targets=targets))
    assert len(at(take_all(made), "i")) > 1
