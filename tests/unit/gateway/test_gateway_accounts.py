"""Usage and limits of keys at one gateway, over tables and reports."""

import pytest
from covey_api.messages import ClientKey, Demand, KeySpent
from covey_gateway import accounts
from covey_gateway.accounts import Accounts
from covey_gateway.figures import Figures
from covey_gateway.records import Record
from covey_gateway.routing.quotas import DAY_SECONDS
from covey_gateway.routing.table import NO_ORDER, RoutingTable, build_table, parse_key
from covey_gateway.wire.metering import Cost

NOON = 20_000 * DAY_SECONDS + DAY_SECONDS / 2


def table(*names: str, digit: str = "1", gateways: tuple[str, ...] = (), **limits: int) -> RoutingTable:
    keys = [
        ClientKey.model_validate({"namespace": "default", "name": name, "hash": hash_of(name, digit)} | limits)
        for name in names
    ]
    return build_table(NO_ORDER, (), (), [parse_key(key) for key in keys], gateways)


def hash_of(name: str, digit: str = "1") -> str:
    return f"sha256:{(name.encode().hex() + digit).ljust(64, '0')}"


def made(start: RoutingTable) -> Accounts:
    found = Accounts(lambda: 0.0, lambda: NOON)
    found.apply_table(start)
    return found


def use(found: Accounts, name: str, tokens: int = 10) -> None:
    assert found.begin(f"default/{name}") is None
    found.end(f"default/{name}")
    found.charge(Record("POST", "/", "r", 0.0, key=f"default/{name}", cost=Cost(tokens)))


def test_usage_is_told_until_the_leader_has_it_and_again_to_another_one() -> None:
    found = made(table("a", "b"))
    assert found.observe_usage() == ()
    use(found, "a")
    told = found.observe_usage()
    assert [(each.hash, each.requests, each.prompt_tokens) for each in told] == [(hash_of("a"), 1, 10)]
    assert found.observe_usage() == told, "that report may be lost"
    found.confirm_usage(told, ())
    assert found.observe_usage() == ()
    use(found, "b")
    use(found, "a")
    assert [each.requests for each in found.observe_usage()] == [2, 1]
    found.confirm_usage(found.observe_usage(), ())
    found.forget_told()
    assert len(found.observe_usage()) == 2


def test_a_key_that_was_made_anew_under_the_same_name_starts_from_nothing() -> None:
    found = made(table("a", requests_per_minute=1))
    use(found, "a")
    found.apply_table(table("a", digit="2", requests_per_minute=1))
    assert found.observe_usage() == ()
    use(found, "a")
    assert [each.hash for each in found.observe_usage()] == [hash_of("a", "2")]


def test_what_a_deleted_key_still_had_under_way_is_nobodys() -> None:
    found = made(table("a"))
    assert found.begin("default/a") is None
    found.apply_table(table())
    found.charge(Record("POST", "/", "r", 0.0, key="default/a", cost=Cost(5)))
    found.end("default/a")
    assert found.observe_usage() == ()
    assert vars(found)["_quotas"] == {}, "keys come and go while the process runs"


def test_a_key_that_was_made_anew_while_a_request_was_under_way_starts_from_nothing_but_that() -> None:
    found = made(table("a", requests_per_minute=1, concurrency=1))
    assert found.begin("default/a") is None
    found.apply_table(table("a", digit="2", requests_per_minute=1, concurrency=1))
    refused = found.begin("default/a")
    assert refused is not None
    assert refused.limit == "concurrency"
    found.end("default/a")
    assert found.begin("default/a") is None


def test_the_share_of_the_last_run_holds_once_the_gateway_knows_its_name() -> None:
    kept = table("a", gateways=("g1", "g2"), requests_per_minute=10)
    found = made(kept)
    found.name_gateway("g2", kept)
    requests, _ = found.allowances("default/a")
    assert requests is not None
    assert requests.allowed == 5


def test_the_fleets_word_counts_what_was_reported_and_not_what_came_since() -> None:
    found = made(table("a", tokens_per_day=100))
    use(found, "a", 40)
    told = found.observe_usage()
    use(found, "a", 10)
    found.confirm_usage(told, (KeySpent(hash=hash_of("a"), day=20_000, tokens=80),))
    assert found.begin("default/a") is None  # 80 with the first 40, and 10 since
    use(found, "a", 10)
    refused = found.begin("default/a")
    assert refused is not None
    assert (refused.limit, refused.retry_after_seconds) == ("tokensPerDay", DAY_SECONDS // 2)


def test_what_a_key_came_to_never_goes_beyond_what_a_report_may_say() -> None:
    found = made(table("a"))
    for _ in range(2):
        use(found, "a", 2**53 - 1)
    (told,) = found.observe_usage()
    assert told.prompt_tokens == 2**53 - 1
    Demand.model_validate_json(Demand(gateway="g", address="", usage=(told,)).model_dump_json())


def test_a_report_is_bounded_and_the_rest_comes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_REPORTED", 2)
    found = made(table(*"abcde"))
    for name in "abcde":
        use(found, name)
    seen: list[str] = []
    while told := found.observe_usage():
        seen += [each.hash for each in told]
        found.confirm_usage(told, ())
    assert seen == [hash_of(name) for name in "abcde"]


def test_what_a_bounded_report_left_out_still_counts_for_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_REPORTED", 1)
    found = made(table("a", "b", tokens_per_day=100))
    use(found, "a", 10)
    use(found, "b", 60)
    told = found.observe_usage()
    assert [each.hash for each in told] == [hash_of("a")]
    found.confirm_usage(told, (KeySpent(hash=hash_of("b"), day=20_000, tokens=50),))
    refused = found.begin("default/b")
    assert refused is not None, "50 elsewhere, and 60 here that the fleet doesn't know of"
    assert refused.limit == "tokensPerDay"


def test_time_to_a_token_is_that_of_answers_and_waiting_in_vain_is_waiting() -> None:
    figures = Figures()
    figures.add(Record("POST", "/", "r", 0.0, model="m", status=200, sent_at=1.0, first_byte_at=2.0, last_byte_at=2.0))
    figures.add(Record("POST", "/", "r", 0.0, model="m", status=400, sent_at=0.0, first_byte_at=0.1, last_byte_at=0.1))
    figures.add(Record("POST", "/", "r", 0.0, model="m", status=504, ended_at=90.0))
    figures.add(Record("POST", "/", "r", 0.0, model="m", status=404, ended_at=0.1))
    found = figures.of_model("", "m")
    assert (sum(found.first_token.counts), found.first_token.total) == (1, 2.0)
    assert (sum(found.held.counts), found.held.total) == (3, 91.0)
