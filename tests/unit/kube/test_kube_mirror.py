"""The mirror: whatever arrives in whatever order, the end is the server's truth."""

from dataclasses import dataclass, field
from typing import Any

from covey_api.kinds import ObjectKey, Unreadable
from covey_api.node import Node
from covey_api.placement import Placement
from covey_controller.stores.kube.mirror import KindMirror, ListMark
from covey_controller.stores.kube.objects import Sighting, sight_object
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("a", "b", "c")


def raw_node(name: str, uid: str, version: int, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": uid, "resourceVersion": str(version), "generation": version}
    return {"metadata": metadata} | fields


def sight(name: str, uid: str, version: int, **fields: Any) -> Sighting:
    return sight_object(Node, raw_node(name, uid, version, **fields))


def key(name: str) -> ObjectKey:
    return ObjectKey("Node", "", name)


def known(mirror: KindMirror) -> dict[str, tuple[str, int]]:
    return {each.name: (entry.uid, entry.version) for each, entry in mirror.entries.items()}


def test_mirror_never_goes_back_in_version() -> None:
    mirror = KindMirror(Node)
    assert mirror.observe(sight("a", "u1", 5)) is not None
    assert mirror.observe(sight("a", "u1", 4)) is None
    assert mirror.observe(sight("a", "u1", 5)) is None
    assert known(mirror) == {"a": ("u1", 5)}


def test_mirror_does_not_bring_back_what_was_deleted() -> None:
    mirror = KindMirror(Node)
    mirror.observe(sight("a", "u1", 5))
    assert mirror.observe_gone(sight("a", "u1", 8)) is not None
    assert mirror.observe(sight("a", "u1", 7)) is None
    assert mirror.observe_gone(sight("a", "u1", 8)) is None
    assert known(mirror) == {}


def test_mirror_does_not_bring_back_what_a_list_was_without() -> None:
    mirror = KindMirror(Node)
    mirror.end_list(mirror.begin_list(), 10, [])
    assert mirror.observe(sight("a", "u1", 9)) is None
    assert mirror.observe(sight("a", "u2", 11)) is not None


def test_object_of_the_same_name_that_was_made_later_takes_the_place() -> None:
    mirror = KindMirror(Node)
    mirror.observe(sight("a", "u1", 5))
    change = mirror.observe(sight("a", "u2", 9))
    assert change is not None
    assert change.is_wish
    assert mirror.observe(sight("a", "u1", 6)) is None
    assert mirror.observe_gone(sight("a", "u1", 8)) is None
    assert known(mirror) == {"a": ("u2", 9)}


def test_list_finds_what_a_watch_missed_and_keeps_what_is_newer_than_it() -> None:
    mirror = KindMirror(Node)
    mirror.observe(sight("gone", "u1", 3))
    mark = mirror.begin_list()
    mirror.observe(sight("new", "u2", 12))
    mirror.observe_gone(sight("late", "u3", 11))
    changes = mirror.end_list(mark, 10, [sight("missed", "u4", 8), sight("late", "u3", 7)])
    assert {change.key.name: change.after is None for change in changes} == {"gone": True, "missed": False}
    assert known(mirror) == {"new": ("u2", 12), "missed": ("u4", 8)}


def test_list_of_a_server_that_begins_its_versions_anew_replaces_everything() -> None:
    """An etcd that was lost, or put back from a backup."""
    mirror = KindMirror(Node)
    mirror.end_list(mirror.begin_list(), 900, [sight("a", "u1", 850), sight("b", "u2", 880), sight("c", "u3", 890)])
    mirror.observe_gone(sight("b", "u2", 901))
    mirror.end_list(mirror.begin_list(), 20, [sight("a", "u9", 12), sight("b", "u2", 15), sight("c", "u3", 18)])
    assert known(mirror) == {"a": ("u9", 12), "b": ("u2", 15), "c": ("u3", 18)}
    mirror.end_list(mirror.begin_list(), 25, [sight("a", "u9", 22)])
    assert known(mirror) == {"a": ("u9", 22)}


def test_list_of_a_server_that_was_put_back_replaces_everything_also_when_its_versions_have_caught_up() -> None:
    """A backup of version 840, into which others wrote until its versions passed those that were seen here."""
    mirror = KindMirror(Node)
    mirror.end_list(mirror.begin_list(), 900, [sight("a", "u1", 850), sight("b", "u2", 880), sight("c", "u3", 830)])
    changes = mirror.end_list(
        mirror.begin_list(), 950, [sight("a", "u1", 820), sight("b", "u7", 835), sight("c", "u3", 830)]
    )
    assert {change.key.name for change in changes} == {"a", "b"}
    assert known(mirror) == {"a": ("u1", 820), "b": ("u7", 835), "c": ("u3", 830)}
    assert mirror.observe(sight("a", "u1", 951)) is not None


def test_change_of_status_alone_is_no_news() -> None:
    mirror = KindMirror(Node)
    first = sight("a", "u1", 5)
    mirror.observe(first)
    metadata = first.raw["metadata"] | {"resourceVersion": "6"}
    change = mirror.observe(sight_object(Node, {"metadata": metadata, "status": {"version": "2"}}))
    assert change is not None
    assert not change.is_wish
    leaving = metadata | {"resourceVersion": "7", "deletionTimestamp": "2030-01-01T00:00:00Z"}
    change = mirror.observe(sight_object(Node, {"metadata": leaving}))
    assert change is not None
    assert change.is_wish


def test_object_of_another_version_is_known_and_nothing_else_is_hurt() -> None:
    mirror = KindMirror(Placement)
    metadata = {"name": "a", "namespace": "team", "uid": "u1", "resourceVersion": "5"}
    mirror.observe(sight_object(Placement, {"metadata": metadata, "spec": {"models": ["x", "y"]}}))
    entry = mirror.entries[ObjectKey("Placement", "team", "a")]
    assert isinstance(entry.object, Unreadable)
    assert entry.object.key == ObjectKey("Placement", "team", "a")
    assert entry.fault == "it is left alone: `spec.modelRef`: Field required"


def test_status_of_another_version_is_dropped_and_the_spec_is_read() -> None:
    mirror = KindMirror(Node)
    mirror.observe(sight("a", "u1", 5, spec={"unschedulable": True}, status={"observedGeneration": "many"}))
    entry = mirror.entries[key("a")]
    assert isinstance(entry.object, Node)
    assert entry.object.spec.unschedulable
    assert entry.fault.startswith("its status is written anew: `status.observedGeneration`")


@dataclass
class Server:
    """What is true, and everything that was ever true."""

    version: int = 0
    objects: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    history: list[tuple[bool, Sighting]] = field(default_factory=list[tuple[bool, Sighting]])

    def write(self, name: str) -> None:
        self.version += 1
        uid = self.objects[name][0] if name in self.objects else f"u{self.version}"
        self.objects[name] = (uid, self.version)
        self.history.append((False, sight(name, uid, self.version)))

    def delete(self, name: str) -> None:
        if name in self.objects:
            self.version += 1
            uid, _ = self.objects.pop(name)
            self.history.append((True, sight(name, uid, self.version)))

    def list(self) -> tuple[int, list[Sighting]]:
        return self.version, [sight(name, uid, version) for name, (uid, version) in self.objects.items()]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("deliver"), st.integers(0, 10**6)),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("page"), st.none()),
        st.tuples(st.just("end"), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_any_interleaving_of_lists_and_events_ends_as_the_servers_truth(steps: list[tuple[str, Any]]) -> None:
    """Events are late, doubled, out of order or lost; lists end long after they were read."""
    server, mirror = Server(), KindMirror(Node)
    mark: ListMark | None = None
    page: tuple[int, list[Sighting]] | None = None
    dead: set[str] = set()
    versions: dict[str, int] = {}
    for step, argument in steps:
        match step:
            case "write":
                server.write(argument)
            case "delete":
                server.delete(argument)
            case "deliver" if server.history:
                is_gone, sighting = server.history[int(argument) % len(server.history)]
                if is_gone:
                    mirror.observe_gone(sighting)
                    dead.add(sighting.uid)
                else:
                    mirror.observe(sighting)
            case "begin":
                mark, page = mirror.begin_list(), None
            case "page" if mark is not None and page is None:
                page = server.list()
            case "end" if mark is not None and page is not None:
                mirror.end_list(mark, *page)
                mark = page = None
            case _:
                pass
        for uid, version in known(mirror).values():
            assert uid not in dead, "never back from the dead"
            assert version >= versions.get(uid, 0), "never back in version"
            versions[uid] = version
    mirror.end_list(mirror.begin_list(), *server.list())
    assert known(mirror) == server.objects


def test_what_is_shown_otherwise_at_a_known_version_by_a_watch_or_an_answer_is_believed() -> None:
    """While kinds are upgraded, an API server shows objects without the new fields at the version that has them."""
    mirror = KindMirror(Node)
    mirror.observe(sight("a", "u1", 5))
    whole = sight("a", "u1", 5, spec={"unschedulable": True})
    change = mirror.observe(whole)
    assert change is not None
    assert change.after is not None
    assert isinstance(change.after.object, Node)
    assert change.after.object.spec.unschedulable
    assert mirror.observe(whole) is None
