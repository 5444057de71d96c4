"""A report that is answered by reflex is taken in and answered as the route would do it, to the byte."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole, Report
from covey_controller.board import FleetBoard
from covey_controller.denials import Denials
from covey_controller.fleet_api.reflex import build_beat_reflex
from covey_controller.merging import merge_report
from covey_controller.name_claims import NameTaken
from covey_controller.serving.answers import render_message
from covey_controller.serving.protocol import Peer
from covey_controller.stores.files.vault import FilesVault
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders, worlds
from kit.arbitrary import next_reports
from kit.vaults import denials_in, finish

NOBODY_DENIED = Denials(FilesVault(Path(tempfile.gettempdir(), "covey-never-read")))
PEER = Peer(CertificateRole.AGENT, "a", 2e9)
URL = b"/fleet/v1/nodes/a/report"


@dataclass(slots=True)
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def leading_board(clock: Clock) -> FleetBoard:
    board = FleetBoard(clock)
    board.begin(1)
    return board


def answer_by_route(board: FleetBoard, report: Report) -> bytes | None:
    """None where it is refused."""
    try:
        return bytes(render_message(board.on_report("a", report)).body)
    except NameTaken:
        return None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_reflex_does_what_the_route_would_do(data: st.DataObject) -> None:
    clock = Clock()
    quick, slow = leading_board(clock), leading_board(clock)
    answer = build_beat_reflex(quick, NOBODY_DENIED, lambda: True)
    said = worlds.report([worlds.member_report(builders.instance(node="a"))])
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now += data.draw(st.sampled_from((0.1, 4.0, 11.0)))
        said = data.draw(st.just(quiet(said)) | next_reports(said))
        quick.wake.clear()
        slow.wake.clear()
        by_reflex = answer(PEER, URL, body_of(said))
        assert (by_reflex or answer_by_route(quick, said)) == answer_by_route(slow, said)
        assert quick.wake.is_set() == slow.wake.is_set()
        assert quick.observe_agents() == slow.observe_agents()
        assert quick.observed == slow.observed


def quiet(said: Report) -> Report:
    """The next one, when nothing has changed."""
    left_out: dict[str, object] = {"full": False, "facts": None, "lanes": None, "blobs": None, "members": None}
    return said.model_copy(update=left_out | {"sequence": said.sequence + 1})


def spoken_to(clock: Clock) -> FleetBoard:
    """A board that knows node `a` whole."""
    board = leading_board(clock)
    board.on_report("a", worlds.report())
    return board


def test_report_without_news_is_answered_by_reflex_and_keeps_its_node_alive() -> None:
    clock = Clock()
    board = spoken_to(clock)
    board.wake.clear()
    clock.now += 4
    answer = build_beat_reflex(board, NOBODY_DENIED, lambda: True)
    assert answer(PEER, URL, body_of(quiet(worlds.report()))) == b'{"term":1,"serial":0,"resend":false}'
    assert board.observed.agents["a"].last_seen == clock.now
    assert not board.wake.is_set()


OTHERS: dict[str, tuple[Peer, bytes, Report]] = {
    "another node's": (PEER, b"/fleet/v1/nodes/b/report", quiet(worlds.report())),
    "a gateway's": (Peer(CertificateRole.GATEWAY, "a", 2e9), URL, quiet(worlds.report())),
    "another call": (PEER, b"/fleet/v1/nodes/a/asks/1", quiet(worlds.report())),
    "a query": (PEER, URL + b"?x", quiet(worlds.report())),
    "whole": (PEER, URL, worlds.report(sequence=2)),
    "with members": (PEER, URL, worlds.report(sequence=2, full=False)),
    "another boot's": (PEER, URL, quiet(worlds.report(boot_id="another"))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_report_is_left_to_the_route_untouched(name: str) -> None:
    board = spoken_to(Clock())
    board.wake.clear()
    before = board.observe_agents()
    peer, url, report = OTHERS[name]
    assert build_beat_reflex(board, NOBODY_DENIED, lambda: True)(peer, url, body_of(report)) is None
    assert (board.observe_agents(), board.wake.is_set()) == (before, False)


def test_nothing_is_answered_by_reflex_while_nobody_leads_or_to_who_sends_no_report() -> None:
    board = spoken_to(Clock())
    beat = body_of(quiet(worlds.report()))
    assert build_beat_reflex(board, NOBODY_DENIED, lambda: False)(PEER, URL, beat) is None
    assert build_beat_reflex(board, NOBODY_DENIED, lambda: True)(PEER, URL, beat[:-1]) is None


def test_removed_agent_is_not_answered_by_reflex(tmp_path: Path) -> None:
    denials = denials_in(tmp_path)
    finish(denials.deny(CertificateRole.AGENT, "a", now=3e9))
    answer = build_beat_reflex(spoken_to(Clock()), denials, lambda: True)
    assert answer(PEER, URL, body_of(quiet(worlds.report()))) is None


def body_of(report: Report) -> bytes:
    return report.model_dump_json(by_alias=True, exclude_none=True).encode()


def test_what_is_said_again_in_the_same_words_stays_the_same_object() -> None:
    """A full report after a broken connection is no news to any plan."""
    first = worlds.report([worlds.member_report(builders.instance(node="a"))])
    again = Report.model_validate_json(body_of(first.model_copy(update={"sequence": 2})))
    assert again.facts is not first.facts
    merged = merge_report(first, again)
    assert merged.sequence == 2
    assert merged.facts is first.facts
    assert merged.lanes is first.lanes
    assert merged.blobs is first.blobs
    assert merged.members is first.members
