"""Since when a node counts as silent: nobody is given up who speaks."""

import pytest
from covey_api.messages import NODE_SILENCE_SECONDS, Report
from covey_controller.reconcile.fleet import STREAM_BREAK_SECONDS, observe_node
from covey_controller.reconcile.sights import AgentView
from covey_planner.types import NodeState

REPORT = Report(boot_id="b", sequence=1, version="0", full=True)
LED_SINCE, NOW = 100.0, 1000.0


@pytest.mark.parametrize(
    ("seen", "disconnected", "since"),
    [
        (NOW - 50, None, NOW - 50 + NODE_SILENCE_SECONDS),
        (NOW - 50, NOW - 45, NOW - 45 + STREAM_BREAK_SECONDS),
        (NOW - 20, NOW - 45, NOW - 20),
        (NOW, NOW - 900, NOW),
    ],
    ids=["silent", "stream-broken", "heard-after-the-break", "reports-go-on-without-a-stream"],
)
def test_silence_begins_with_the_last_word_at_the_earliest(
    seen: float, disconnected: float | None, since: float
) -> None:
    agent = AgentView("a", seen, REPORT, disconnected)
    sight = observe_node("a", None, agent, LED_SINCE, LED_SINCE, NOW)
    assert (sight.state, sight.unknown_since) == (NodeState.UNKNOWN, since)
