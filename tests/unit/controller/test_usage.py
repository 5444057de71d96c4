"""Usage of keys: counts that only grow come to one sum, however often and in whatever order they are told."""

from dataclasses import replace

import pytest
from covey_api.access_key import AccessKey, AccessKeySpec, AccessKeyStatus, KeyCounts, KeyUsageStatus
from covey_api.messages import Demand, KeyUsage
from covey_api.meta import ObjectMeta
from covey_controller import usages as module
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.usage import MAX_BOOTS, add_reports
from covey_controller.reconcile.world import GatewayView
from covey_controller.usages import Usages
from hypothesis import given
from hypothesis import strategies as st
from kit import worlds

HASH = f"sha256:{'1' * 64}"
NOON, LATER, NEXT_DAY = "2026-01-01T12:00:00Z", "2026-01-01T12:01:00Z", "2026-01-02T00:00:01Z"


def usage(requests: int, hash_: str = HASH) -> KeyUsage:
    return KeyUsage(hash=hash_, requests=requests, prompt_tokens=10 * requests, completion_tokens=2 * requests)


def counts(requests: int) -> KeyCounts:
    return KeyCounts(requests=requests, prompt_tokens=10 * requests, completion_tokens=2 * requests)


def key(**spec: object) -> AccessKey:
    metadata = ObjectMeta(name="ann", namespace="default", uid="u", generation=1, creation_timestamp=NOON)
    return AccessKey(metadata=metadata, spec=AccessKeySpec.model_validate({"hash": HASH} | spec))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=30))
def test_a_report_that_is_lost_or_comes_again_changes_no_sum(steps: list[tuple[str, int, bool]]) -> None:
    """`b` of each step: whether its report is seen."""
    status, true, seen = KeyUsageStatus(), dict.fromkeys("abc", 0), dict[str, dict[str, KeyUsage]]()
    for boot, more, is_seen in steps:
        true[boot] += more
        if is_seen:
            seen[boot] = {HASH: usage(true[boot])}
        for _ in range(2):
            status = add_reports(status, HASH, seen, NOON)
    seen = {boot: {HASH: usage(count)} for boot, count in true.items()}
    status = add_reports(status, HASH, seen, NOON)
    assert status.total == status.today == counts(sum(true.values()))


def test_a_report_that_comes_after_a_later_one_takes_nothing_away() -> None:
    usages = Usages()
    for count in (3, 5, 4):
        usages.hear("g", Demand(gateway="g", address="", boot="1", usage=(usage(count),)))
    assert usages.observe() == {"g/1": {HASH: usage(5)}}


def test_a_gateway_that_began_anew_adds_to_what_was() -> None:
    status = add_reports(KeyUsageStatus(), HASH, {"g/1": {HASH: usage(3)}}, NOON)
    status = add_reports(status, HASH, {"g/2": {HASH: usage(1)}}, LATER)
    assert status.total == counts(4)
    assert add_reports(status, HASH, {"g/1": {HASH: usage(3)}, "g/2": {HASH: usage(1)}}, LATER) == status


def test_a_key_whose_hash_was_edited_counts_on_from_its_sums() -> None:
    other = f"sha256:{'2' * 64}"
    reports = {"g/1": {HASH: usage(60), other: usage(60)}, "g/2": {HASH: usage(1)}}
    status = add_reports(KeyUsageStatus(), HASH, reports, NOON)
    edited = add_reports(status, other, reports, LATER)
    assert (edited.total, [each.boot for each in edited.counted]) == (counts(121), ["g/1"])
    assert add_reports(edited, other, reports, LATER) == edited


def test_what_was_stored_without_a_hash_does_not_count_twice() -> None:
    status = add_reports(KeyUsageStatus(), HASH, {"g/1": {HASH: usage(60)}}, NOON)
    before = status.model_copy(update={"hash": ""})
    assert add_reports(before, HASH, {"g/1": {HASH: usage(60)}}, LATER) == before
    status = add_reports(before, HASH, {"g/1": {HASH: usage(61)}}, LATER)
    assert (status.total, status.hash) == (counts(61), HASH)


def test_of_an_ended_process_what_was_asked_by_the_new_hash_is_kept_until_it_is_counted() -> None:
    other = f"sha256:{'2' * 64}"
    counted = add_reports(KeyUsageStatus(), HASH, {"g/1": {HASH: usage(60)}}, NOON)
    edited = key(hash=other, tokens_per_day=10_000).model_copy(update={"status": AccessKeyStatus(usage=counted)})
    usages = Usages()
    for boot in ("1", "2"):
        usages.hear("g", Demand(gateway="g", address="", boot=boot, usage=(usage(2, other),)))
    usages.settle((edited,))
    world = worlds.world(edited, timestamp=NOON, usage=usages.observe())
    usages.remember(plan(world, 100.0).spending)
    assert [each.tokens for each in usages.spent()] == [counts(64).tokens]
    (write,) = plan(replace(world, timestamp=LATER), 100.0).statuses
    assert AccessKey.model_validate(edited.model_dump() | {"status": write.status}).status.usage.total == counts(64)


def test_a_day_begins_with_what_is_used_on_it() -> None:
    status = add_reports(KeyUsageStatus(), HASH, {"g/1": {HASH: usage(3)}}, NOON)
    status = add_reports(status, HASH, {"g/1": {HASH: usage(5)}}, NEXT_DAY)
    assert (status.day, status.today, status.total) == ("2026-01-02", counts(2), counts(5))


def test_a_sum_stands_still_at_the_most_that_a_status_holds_and_its_day_goes_on() -> None:
    most = KeyUsage(hash=HASH, prompt_tokens=2**53 - 1)
    status = add_reports(KeyUsageStatus(), HASH, {"g/1": {HASH: most}, "g/2": {HASH: most}}, NOON)
    assert status.total.prompt_tokens == status.today.prompt_tokens == 2**53 - 1
    more = {"g/3": {HASH: KeyUsage(hash=HASH, prompt_tokens=5)}}
    assert add_reports(status, HASH, more, NEXT_DAY).today.prompt_tokens == 5


def test_boots_that_are_remembered_are_bounded_and_those_that_are_here_are_all_kept() -> None:
    status = KeyUsageStatus()
    for number in range(2 * MAX_BOOTS):
        status = add_reports(status, HASH, {f"g/{number}": {HASH: usage(1)}}, NOON)
    assert len(status.counted) == MAX_BOOTS
    here = {f"h/{number:03d}": {HASH: usage(1)} for number in range(MAX_BOOTS)}
    status = add_reports(status, HASH, here, NOON)
    assert {each.boot for each in status.counted} == here.keys()
    assert add_reports(status, HASH, here | {"a/new": {HASH: usage(1)}}, NOON) == status, "nobody's place is taken"
    KeyUsageStatus.model_validate(status.model_dump())


def test_boots_of_other_keys_take_no_place() -> None:
    others = {f"a/{number}": {f"sha256:{'2' * 64}": usage(1)} for number in range(3 * MAX_BOOTS)}
    status = add_reports(KeyUsageStatus(), HASH, others | {"z/1": {HASH: usage(5)}}, NOON)
    assert status.total == counts(5)


def test_a_leader_that_hears_gateways_one_by_one_counts_none_twice() -> None:
    here = {f"g{number:02d}/1": {HASH: usage(3)} for number in range(MAX_BOOTS - 2)}
    status = add_reports(KeyUsageStatus(), HASH, here, NOON)
    heard: dict[str, dict[str, KeyUsage]] = {}
    for boot in here:
        heard[boot] = {HASH: usage(4)}
        status = add_reports(status, HASH, heard, LATER)
    assert status.total == counts(4 * len(here))


@given(st.lists(st.tuples(st.integers(0, 19), st.booleans(), st.booleans()), max_size=60))
def test_gateways_that_begin_anew_are_all_in_the_sum_and_then_forgotten(steps: list[tuple[int, bool, bool]]) -> None:
    """Of each step: which gateway is used, whether it began anew just before, whether the loop turns after it."""
    usages, stored, boots, used, total = Usages(), key(), [0] * 20, [0] * 20, 0

    def turn() -> None:
        nonlocal stored
        usages.settle((stored,))
        status = add_reports(stored.status.usage, HASH, usages.observe(), NOON)
        stored = stored.model_copy(update={"status": AccessKeyStatus(usage=status)})

    for gateway, is_anew, turns in steps:
        if is_anew:
            turn()
            boots[gateway], used[gateway] = boots[gateway] + 1, 0
        used[gateway], total = used[gateway] + 1, total + 1
        told = (usage(used[gateway]),)
        usages.hear(f"g{gateway}", Demand(gateway="g", address="", boot=str(boots[gateway]), usage=told))
        if turns:
            turn()
    turn()
    turn()
    assert stored.status.usage.total == counts(total)
    assert len(usages.observe()) == len({gateway for gateway, _, _ in steps}), "one process each"


def test_of_keys_that_are_gone_nothing_is_kept_and_a_boot_with_too_many_loses_no_more_than_the_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_KEYS", 2)
    usages, gone = Usages(), [f"sha256:{digit * 64}" for digit in "234"]
    for each in (gone[0], HASH, gone[1], gone[2], HASH):
        usages.hear("g", Demand(gateway="g", address="", boot="1", usage=(usage(3, each),)))
    assert usages.observe()["g/1"].keys() == {gone[0], HASH}
    usages.settle((key(),))
    assert usages.observe()["g/1"].keys() == {HASH}


def test_it_is_written_once_a_minute_at_most_and_never_without_a_request() -> None:
    world = worlds.world(key(), timestamp=NOON)
    quiet = plan(world, 100.0)
    (settled,) = [each.status for each in quiet.statuses]
    stored = key().model_copy(update={"status": settled})
    assert plan(replace(world, objects=(stored,)), 100.0).statuses == ()
    used = replace(world, objects=(stored,), usage={"g/1": {HASH: usage(2)}})
    (write,) = plan(used, 100.0).statuses
    written = key().model_copy(update={"status": write.status})
    more = replace(used, objects=(written,), usage={"g/1": {HASH: usage(3)}})
    waiting = plan(replace(more, timestamp="2026-01-01T12:00:59Z"), 100.0)
    assert (waiting.statuses, waiting.wake_at) == ((), 101.0)
    (write,) = plan(replace(more, timestamp=LATER), 100.0).statuses
    assert AccessKey.model_validate(key().model_dump() | {"status": write.status}).status.usage.total == counts(3)


def test_what_the_fleet_spent_today_is_told_before_it_is_written() -> None:
    usages = Usages()
    usages.hear("g", Demand(gateway="g", address="", boot="1", usage=(usage(2),)))
    world = worlds.world(key(tokens_per_day=100), timestamp=NOON, usage=usages.observe())
    usages.remember(plan(world, 100.0).spending)
    (spent,) = usages.spent()
    assert (spent.hash, spent.tokens, spent.day) == (HASH, 24, 20454)
    usages.hear("h", Demand(gateway="h", address="", boot="1", usage=(usage(1),)))
    assert [each.tokens for each in usages.spent()] == [36]
    usages.remember(plan(worlds.world(key(), timestamp=NOON, usage=usages.observe()), 100.0).spending)
    assert usages.spent() == (), "it has no limit of the day"


def test_processes_of_a_gateway_that_are_remembered_are_bounded() -> None:
    usages = Usages()
    for number in range(9):
        usages.hear("g", Demand(gateway="g", address="", boot=str(number), usage=(usage(1),)))
    assert len(usages.observe()) == module.MAX_BOOTS
    usages.forget("g")
    assert usages.observe() == {}


def test_gateways_that_share_limits_are_told_only_where_a_key_has_any() -> None:
    gateways = tuple(GatewayView(name, 100.0, connected=name != "lost") for name in ("b", "a", "lost"))
    for spec, names in (({}, ()), ({"tokens_per_day": 5}, ()), ({"concurrency": 2}, ("a", "b", "lost"))):
        world = worlds.world(key(**spec), gateways=gateways)
        table = plan(world, 101.0).endpoints
        assert table is not None
        assert table.gateways == names
    table = plan(replace(world, memory=replace(world.memory, planned_at=110.0)), 111.0).endpoints
    assert table is not None
    assert table.gateways == ("a", "b"), "its share returns"
    assert table.keys[0].concurrency == 2
