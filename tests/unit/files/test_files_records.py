"""What the records do beyond the port: events, the journal of edits, fencing, Nodes without a document."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from covey_api.instance import InstanceSpec
from covey_api.kinds import ObjectKey
from covey_api.meta import ObjectMeta
from covey_api.node import Node, NodeFacts, NodeSpec, NodeStatus
from covey_api.placement import PlacementStatus
from covey_controller.ports import Event, LeaseLost, Refused
from covey_controller.stores.files import events
from covey_controller.stores.files.cel_rules import find_broken_transitions
from covey_controller.stores.files.database import StoreDamaged, open_database
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.records import Records
from covey_controller.stores.files.rest import Choice
from covey_controller.stores.files.writing import FileChange
from kit import builders
from kit.documents import node_key, node_yaml, placement_key, placement_yaml


def open_records(path: Path, *, term_above: int | None = 0) -> Records:
    times = (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=second) for second in count())
    uids = (f"uid-{number}" for number in count())
    records = Records(open_database(path), lambda: True, lambda: next(times), lambda: next(uids))
    if term_above is not None:
        records.raise_term(term_above)
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def records(path: Path) -> Iterator[Records]:
    opened = open_records(path)
    yield opened
    opened.close()


def choose(*texts: str, kept: frozenset[ObjectKey] = frozenset(), digest: str = "d1") -> Choice:
    documents = parse_documents({f"{number}.yaml": text.encode() for number, text in enumerate(texts)})
    return Choice(documents, kept, digest)


REPORTED = NodeStatus(facts=NodeFacts(os="linux", architecture="x86_64", cpu_cores=2, pools=()))


def test_same_choice_twice_changes_nothing(records: Records) -> None:
    assert records.put_in_force(choose(placement_yaml()))
    before = records.objects
    assert not records.put_in_force(choose(placement_yaml()))
    assert records.objects is before


def test_kept_objects_stay_and_the_set_in_force_is_still_the_old_one(records: Records) -> None:
    records.put_in_force(choose(placement_yaml("a"), digest="old"))
    records.put_in_force(choose(placement_yaml("b"), kept=frozenset({placement_key("a")}), digest=""))
    assert set(records.objects) == {placement_key("a"), placement_key("b")}
    assert records.applied == "old"
    records.put_in_force(choose(placement_yaml("b"), digest="new"))
    assert set(records.objects) == {placement_key("b")}
    assert records.applied == "new"


def test_node_that_lost_its_document_is_cordoned_with_an_empty_spec(records: Records) -> None:
    records.put_in_force(choose(node_yaml()))
    records.write_status(node_key(), REPORTED, ())
    records.put_in_force(choose())
    cordoned = records.objects[node_key()]
    assert isinstance(cordoned, Node)
    assert cordoned.spec == NodeSpec(unschedulable=True)
    assert cordoned.metadata.deletion_timestamp is None
    assert cordoned.status == REPORTED
    assert node_key() not in records.documented


def test_node_that_never_reported_goes_with_its_document(records: Records) -> None:
    records.put_in_force(choose(node_yaml()))
    records.put_in_force(choose())
    assert node_key() not in records.objects


def test_document_that_comes_back_withdraws_the_deletion(records: Records) -> None:
    records.create(Node(metadata=ObjectMeta(name="a")))
    records.write_status(node_key(), REPORTED, ())
    assert records.mark_deleted([node_key()])
    assert not records.mark_deleted([node_key()])
    leaving = records.objects[node_key()]
    assert isinstance(leaving, Node)
    assert leaving.metadata.deletion_timestamp is not None
    assert leaving.spec.unschedulable
    records.put_in_force(choose(node_yaml()))
    declared = records.objects[node_key()]
    assert isinstance(declared, Node)
    assert declared.metadata.deletion_timestamp is None
    assert not declared.spec.unschedulable


def test_events_are_counted_and_the_last_comes_last(records: Records) -> None:
    records.put_in_force(choose(placement_yaml()))
    key = placement_key()
    first, second = Event(key, "Planned", "on node 'a'"), Event(key, "Failed", "it crashed", warning=True)
    for event in (first, second, first):
        records.write_status(key, PlacementStatus(), (event,))
    found = records.events(key)
    assert [(record.event, record.count) for record in found] == [(second, 1), (first, 2)]
    assert found[1].first_seen < found[1].last_seen


def test_events_are_bounded_per_object_and_in_all(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 50)
    records.put_in_force(choose(placement_yaml("a"), placement_yaml("b")))
    for name in ("a", "b"):
        key = placement_key(name)
        for number in range(40):
            records.write_status(key, PlacementStatus(), (Event(key, "R", f"{number}"),))
    assert [record.event.message for record in records.events(placement_key("b"))] == [str(n) for n in range(8, 40)]
    assert len(records.events(placement_key("a"))) == 50 - events.MAX_EVENTS_PER_OBJECT


def test_status_of_another_kind_is_refused(records: Records) -> None:
    records.put_in_force(choose(placement_yaml()))
    with pytest.raises(TypeError, match="must be a PlacementStatus; got a NodeStatus"):
        records.write_status(placement_key(), NodeStatus(), ())


def test_what_its_schema_refuses_is_not_written_since_it_could_not_be_read_again(path: Path, records: Records) -> None:
    records.put_in_force(choose(node_yaml()))
    records.write_status(node_key(), REPORTED, ())
    instance = records.create(builders.instance())
    unwritable = REPORTED.changed(version="sk-secret" * 8)
    with pytest.raises(Refused, match=r"`status\.version`: String should have at most 64 characters$"):
        records.write_status(node_key(), unwritable, (Event(node_key(), "R", "m"),))
    long = instance.spec.changed(placement="p" * 64)
    with pytest.raises(Refused, match=r"`spec\.placement`"):
        records.create(builders.instance(name="other").model_copy(update={"spec": long}))
    before = records.objects
    records.close()
    again = open_records(path, term_above=None)
    assert again.objects == before
    again.close()


def test_leader_of_an_older_term_may_not_write(path: Path, records: Records) -> None:
    newer = open_records(path)
    assert newer.term == records.term + 1
    with pytest.raises(LeaseLost, match="led in term 1; the store is in another one now"):
        records.create(builders.instance())
    newer.create(builders.instance())
    newer.close()
    assert records.objects == {}


def test_unfinished_edit_is_remembered_until_a_set_is_in_force(path: Path, records: Records) -> None:
    changes = (FileChange("/a", None, b"new"), FileChange("/b", b"old", None))
    records.begin_write(changes)
    reopened = open_records(path, term_above=None)
    assert reopened.unfinished_write() == changes
    reopened.close()
    records.put_in_force(choose())
    assert records.unfinished_write() == ()
    records.begin_write(changes)
    records.end_write()
    assert records.unfinished_write() == ()


def test_row_that_no_longer_parses_is_damage(path: Path, records: Records) -> None:
    records.put_in_force(choose(placement_yaml()))
    database = open_database(path)
    with database.transaction(durable=True) as connection:
        connection.execute("UPDATE objects SET body='{}'")
    with pytest.raises(StoreDamaged, match="Placement 'smollm2' can't be read"):
        open_records(path, term_above=None)
    database.close()


def test_transition_rules_are_the_crds_own() -> None:
    # As JSON: pydantic's own type of this dictionary says nothing.
    schema = json.loads(json.dumps(InstanceSpec.model_json_schema()))
    messages = [rule["message"] for rule in schema["x-kubernetes-validations"]]
    before = builders.instance(term=2, attempt=2, goal="Drain").spec
    after = builders.instance(term=1, attempt=1, goal="Run", instance_id="00000000000000bb", drain_seconds=1).spec
    assert list(find_broken_transitions(before, after)) == messages
    assert find_broken_transitions(before, before) == ()
