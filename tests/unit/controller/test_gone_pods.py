"""What is kept of gateways that are pods: each rollout brings new names, and none of the old ones comes back."""

import json
from pathlib import Path

from covey_api.messages import CertificateRole, Demand
from covey_controller.board import FORGET_SECONDS, FleetBoard
from covey_controller.denials import JOINING_SECONDS, Denials
from kit.vaults import denials_in, finish

NOW = 1_800_000_000
GATEWAY = CertificateRole.GATEWAY


def held(folder: Path) -> dict[str, object]:
    return json.loads((folder / "denials.json").read_text())


def join(denials: Denials, name: str, now: float, living: set[str], *, is_pod: bool | None = True) -> None:
    finish(denials.record_issue(GATEWAY, name, now, is_pod=is_pod, may_be_there=living.__contains__))


def test_pods_that_are_gone_are_forgotten_with_the_next_join(tmp_path: Path) -> None:
    denials, later = denials_in(tmp_path), NOW + JOINING_SECONDS + 1
    for name in ("gone", "lives"):
        join(denials, name, NOW, set())
    join(denials, "laptop", NOW, set(), is_pod=False)
    finish(denials.record_issue(CertificateRole.AGENT, "node", NOW, is_pod=True))
    join(denials, "new", later, {"lives"})
    assert set(denials.observe_issued(GATEWAY)) == {"lives", "laptop", "new"}
    assert held(tmp_path)["pods"] == ["agent/node", "gateway/lives", "gateway/new"]


def test_a_pod_that_joined_a_moment_ago_is_kept_unheard(tmp_path: Path) -> None:
    denials = denials_in(tmp_path)
    join(denials, "first", NOW, set())
    join(denials, "second", NOW + JOINING_SECONDS - 1, set())
    assert set(denials.observe_issued(GATEWAY)) == {"first", "second"}


def test_hundreds_of_rollouts_leave_no_more_than_the_last(tmp_path: Path) -> None:
    denials = denials_in(tmp_path)
    for number in range(300):
        join(denials, f"pod-{number}", NOW + number * (JOINING_SECONDS + 1), set())
    assert set(denials.observe_issued(GATEWAY)) == {"pod-299"}
    assert (tmp_path / "denials.json").stat().st_size < 200


def test_one_that_was_forgotten_and_renews_is_a_pod_again(tmp_path: Path) -> None:
    denials = denials_in(tmp_path)
    join(denials, "back", NOW, set(), is_pod=None)
    assert denials.is_pod(GATEWAY, "back")
    join(denials, "laptop", NOW, set(), is_pod=False)
    join(denials, "laptop", NOW + 1, set(), is_pod=None)
    assert not denials.is_pod(GATEWAY, "laptop")


def test_one_that_was_removed_stays_refused_when_it_is_forgotten(tmp_path: Path) -> None:
    denials = denials_in(tmp_path)
    join(denials, "bad", NOW, set())
    finish(denials.deny(GATEWAY, "bad", NOW + 1))
    join(denials, "new", NOW + JOINING_SECONDS + 2, set())
    assert [each.name for each in denials.refused_gateways] == ["bad"]
    assert set(denials.observe_issued(GATEWAY, ["bad"])) == {"new"}


def test_a_leader_that_has_not_listened_for_long_takes_nobody_for_gone() -> None:
    now = [0.0]
    board = FleetBoard(lambda: now[0])
    board.begin(1)
    now[0] = FORGET_SECONDS
    assert board.may_be_there("g")
    now[0] += 1
    assert not board.may_be_there("g")
    board.on_demand("g", Demand(gateway="g", address="http://127.0.0.1:1"))
    assert board.may_be_there("g")
    board.begin(2)
    assert board.may_be_there("other")
