"""Who is heard under one node's name: a restart at once, a second machine never while the first one lives."""

from contextlib import suppress

import pytest
from covey_api.messages import NODE_SILENCE_SECONDS
from covey_api.meta import ObjectMeta
from covey_api.node import Node
from covey_api.reasons import EventReason, NodeReason
from covey_controller.board import FleetBoard
from covey_controller.name_claims import NameClaims, NameTaken
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from kit import builders, worlds

NOW = 100.0


@pytest.fixture
def claims() -> NameClaims:
    return NameClaims()


def test_a_restarted_agent_is_heard_at_once(claims: NameClaims) -> None:
    assert [claims.admit("a", boot, NOW) for boot in ("b0", "b0", "b1", "b1", "b2")] == [True] * 5
    assert claims.rival_heard("a") is None


def test_one_late_report_of_a_process_that_ended_changes_nothing(claims: NameClaims) -> None:
    assert claims.admit("a", "b0", NOW)
    assert claims.admit("a", "b1", NOW)
    assert not claims.admit("a", "b0", NOW), "it is the elder's last word"
    assert claims.admit("a", "b1", NOW + 1)
    assert claims.rival_heard("a") is None


def test_the_first_of_two_machines_is_heard_and_the_other_dropped(claims: NameClaims) -> None:
    heard = [(boot, claims.admit("a", boot, NOW + step)) for step in range(6) for boot in ("b0", "b1")]
    assert heard[:5] == [("b0", True), ("b1", True), ("b0", False), ("b1", True), ("b0", True)]
    assert heard[5:] == [
        ("b1", False),
        ("b0", True),
        ("b1", False),
        ("b0", True),
        ("b1", False),
        ("b0", True),
        ("b1", False),
    ]
    assert claims.rival_heard("a") == NOW + 5
    assert claims.admit("other", "b1", NOW)


def test_the_other_machine_is_heard_once_the_first_is_silent(claims: NameClaims) -> None:
    for boot in ("b0", "b1", "b0", "b0", "b1"):
        claims.admit("a", boot, NOW)
    assert not claims.admit("a", "b1", NOW + NODE_SILENCE_SECONDS - 1)
    assert claims.admit("a", "b1", NOW + NODE_SILENCE_SECONDS)
    assert claims.rival_heard("a") is None


def test_a_restart_of_the_first_keeps_the_other_out(claims: NameClaims) -> None:
    for boot in ("b0", "b1", "b0", "b0"):
        claims.admit("a", boot, NOW)
    assert claims.admit("a", "b2", NOW)
    assert not claims.admit("a", "b1", NOW)


def test_another_machine_never_disturbs_one_whose_stream_is_open(claims: NameClaims) -> None:
    assert claims.admit("a", "b0", NOW)
    for step in range(1, 20):
        heard = [claims.admit("a", boot, NOW + step, is_streaming=True) for boot in ("b1", "b0", "b2")]
        assert heard == [False, True, False]


def test_a_proven_rival_gets_no_name_from_a_stream_that_breaks(claims: NameClaims) -> None:
    claims.admit("a", "b0", NOW)
    assert not claims.admit("a", "b1", NOW, is_streaming=True)
    assert claims.rival_heard("a") is None, "it may be a restart"
    for step in (1, 2):
        claims.admit("a", "b0", NOW + step, is_streaming=True)
    assert claims.rival_heard("a") == NOW + 2
    assert not claims.admit("a", "b1", NOW + 3)
    assert not claims.may_stream("a", "b1", NOW + 3, is_streaming=False)
    assert claims.may_stream("a", "b1", NOW + 2 + NODE_SILENCE_SECONDS, is_streaming=False)
    assert claims.admit("a", "b1", NOW + 2 + NODE_SILENCE_SECONDS)


def test_a_restart_that_is_faster_than_the_end_of_its_stream_is_heard_after_it(claims: NameClaims) -> None:
    claims.admit("a", "b0", NOW)
    assert not claims.admit("a", "b1", NOW, is_streaming=True)
    assert claims.admit("a", "b1", NOW + 1)


def test_reports_of_the_other_machine_do_not_reach_the_plan() -> None:
    board = FleetBoard(lambda: NOW)
    board.begin(1)
    mine = builders.instance()
    for boot, members in (("b0", [worlds.member_report(mine)]), ("b1", [])) * 4:
        with suppress(NameTaken):
            board.on_report("a", worlds.report(members, boot_id=boot))
    (view,) = board.observe_agents()
    assert view.report is not None
    assert (view.report.boot_id, len(view.report.members or ()), view.rival) == ("b0", 1, NOW)


def test_a_node_says_that_its_name_is_contested_until_the_other_is_silent() -> None:
    node = Node(metadata=ObjectMeta(name="a", uid="uid-a", generation=1))
    for heard, is_told in ((NOW - 1, True), (NOW - NODE_SILENCE_SECONDS, False), (None, False)):
        made = plan(worlds.world(node, agents=(AgentView("a", NOW, worlds.report(), rival=heard),)), NOW)
        (status,) = [write.status for write in made.statuses if write.key == node.key]
        reasons = {condition.type: condition.reason for condition in status.conditions}
        assert (reasons.get("NameContested") == NodeReason.NAME_CONTESTED) is is_told
        assert reasons["Ready"] == NodeReason.REPORTING
        assert (EventReason.NAME_CONTESTED in [note.reason for note in made.notes]) is is_told
