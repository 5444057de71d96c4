"""Events as `kubectl describe` wants them."""

from datetime import UTC, datetime

from covey_api.kinds import ObjectKey
from covey_controller.ports import Event
from covey_controller.stores.kube.events import MAX_MESSAGE_BYTES, event_name, render_event

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PLACEMENT = ObjectKey("Placement", "team", "x")


def test_same_words_about_the_same_object_are_the_same_event() -> None:
    said = Event(PLACEMENT, "Created", "placed on node 'a'")
    assert event_name(said, "u1") == event_name(Event(PLACEMENT, "Created", "placed on node 'a'"), "u1")
    assert event_name(said, "u1") != event_name(said, "u2")
    assert event_name(said, "u1") != event_name(Event(PLACEMENT, "Created", "placed on node 'b'"), "u1")


def test_event_of_an_object_without_a_namespace_is_in_default() -> None:
    body = render_event(Event(ObjectKey("Node", "", "a"), "NodeJoined", "words", warning=True), "u1", NOW)
    assert body["metadata"]["namespace"] == "default"
    assert body["involvedObject"] == {"apiVersion": "covey.dev/v1alpha1", "kind": "Node", "name": "a", "uid": "u1"}
    assert body["type"] == "Warning"


def test_long_message_is_cut_between_characters() -> None:
    body = render_event(Event(PLACEMENT, "Created", "é" * 2_000), "u1", NOW)
    assert len(body["message"].encode()) == MAX_MESSAGE_BYTES
    assert set(body["message"]) == {"é"}
    odd = render_event(Event(PLACEMENT, "Created", "x" + "é" * 2_000), "u1", NOW)
    assert len(odd["message"].encode()) == MAX_MESSAGE_BYTES - 1
