"""Tables and descriptions as people see them."""

from datetime import UTC, datetime, timedelta

import pytest
from covey.tables import render_age, render_describe, render_objects, render_table
from covey_api.placement import Placement

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ITEM = {
    "kind": "Placement",
    "metadata": {"name": "smollm2", "namespace": "default", "generation": 2},
    "spec": {"modelRef": {"name": "smollm2"}},
    "status": {
        "observedGeneration": 2,
        "ready": "1/2",
        "nodes": ["a", "b"],
        "nodeNames": "a,b",
        "conditions": [{"type": "Ready", "status": "True", "reason": "PartlyServing", "message": "1 of 2"}],
    },
}


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        ("2026-03-01T11:59:15Z", "45s"),
        ("2026-03-01T11:48:00Z", "12m"),
        ("2026-03-01T08:30:00Z", "3h"),
        ("2026-02-20T12:00:00Z", "9d"),
        ("2026-03-01T12:00:09Z", "0s"),
        ("no time", ""),
    ],
)
def test_render_age_reads_like_kubectl(timestamp: str, expected: str) -> None:
    assert render_age(timestamp, NOW) == expected


def test_render_table_aligns_columns_and_leaves_no_trailing_blanks() -> None:
    assert render_table(("NAME", "X"), [("long-name", ""), ("a", "1")]) == "NAME        X\nlong-name\na           1"


def test_render_objects_shows_wide_columns_only_when_asked() -> None:
    narrow = render_objects(Placement, [ITEM], wide=False, all_namespaces=False, prefix=False)
    wide = render_objects(Placement, [ITEM], wide=True, all_namespaces=True, prefix=True)
    assert narrow.splitlines()[0].split() == ["NAME", "MODEL", "READY", "CONTEXT", "ENGINE", "AGE"]
    assert wide.splitlines()[0].split()[0] == "NAMESPACE"
    assert "placement/smollm2" in wide
    assert "a,b" in wide
    assert "PartlyServing" in wide


def test_render_describe_shows_how_long_ago_an_event_was_seen_where_that_is_known() -> None:
    seen = (datetime.now(UTC) - timedelta(minutes=5)).isoformat().replace("+00:00", "Z")
    events = [{"reason": "Created", "message": "on node 'a'", "seen": seen}, {"reason": "Old", "message": "m"}]
    lines = render_describe(Placement, ITEM, events).splitlines()[-3:]
    assert [line.split() for line in lines] == [
        ["TYPE", "REASON", "AGE", "MESSAGE"],
        ["Normal", "Created", "5m", "on", "node", "'a'"],
        ["Normal", "Old", "m"],
    ]


def test_render_describe_shows_conditions_and_events() -> None:
    text = render_describe(Placement, ITEM, [{"reason": "Created", "message": "smollm2-0 on node 'a'"}])
    assert "Generation:  2 (observed 2)" in text
    assert "PartlyServing" in text
    assert "Created" in text


def test_what_a_node_writes_cannot_steer_a_terminal_or_add_a_row() -> None:
    table = render_table(("NAME",), [("a\x1b[2J\x9b31m\r\u202e\nfake",), ("größe 量",)])
    assert table == "NAME\na\\x1b[2J\\x9b31m\\r\\u202e\\nfake\ngröße 量"


def test_described_conditions_cannot_steer_a_terminal() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "X", "message": "\x1b]0;owned\x07"}
    item = ITEM | {"status": {"conditions": [condition], "version": "\x1b[31m"}}
    text = render_describe(Placement, item, [{"reason": "R", "message": "\x1b[2J"}])
    assert "\x1b" not in text
