"""Reading objects: names from paths, lists, and the watch as differences of snapshots.

Every part of the controller replaces its objects and never changes one, so a snapshot is a dict of references and a
difference costs comparisons of what is not the same object.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from enum import StrEnum
from typing import Any

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import KEEPALIVE, KEEPALIVE_SECONDS
from covey_api.meta import DEFAULT_NAMESPACE, Message
from covey_api.registry import parse_kind

from covey_controller.ports import Explainer
from covey_controller.serving.answers import ApiError, ApiReason
from covey_controller.serving.lines import render_line

# How a path names the namespace of a cluster-scoped object.
NO_NAMESPACE = "-"


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(Message):
    """A line of the watch."""

    type: ChangeType
    object: dict[str, Any]


def parse_plural(word: str) -> type[Kind]:
    """ApiError 404 lists the kinds there are."""
    try:
        return parse_kind(word)
    except ValueError as error:
        raise ApiError(404, ApiReason.NOT_FOUND, str(error)) from None


def parse_key(kind: str, namespace: str, name: str) -> ObjectKey:
    """The key that a path or body means: `-` or nothing is the kind's own default."""
    known = parse_plural(kind)
    if not known.NAMESPACED:
        return ObjectKey(known.__name__, "", name)
    return ObjectKey(known.__name__, DEFAULT_NAMESPACE if namespace in ("", NO_NAMESPACE) else namespace, name)


def list_objects(explainer: Explainer, kinds: Collection[str], namespace: str | None = None) -> dict[ObjectKey, Kind]:
    """Objects of these kinds, ordered by kind, namespace and name; cluster-scoped ones are in every namespace."""
    found = {
        key: value
        for key, value in explainer.objects().items()
        if key.kind in kinds and (namespace is None or key.namespace in ("", namespace))
    }
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


async def watch_objects(explainer: Explainer, kinds: Collection[str]) -> AsyncGenerator[bytes]:
    """All objects as ADDED, then each change, as lines; a keep-alive line when a look finds nothing new."""
    known: Mapping[ObjectKey, Kind] = {}
    while True:
        current = list_objects(explainer, kinds)
        changes = diff_objects(known, current)
        known = current
        for change in changes:
            yield render_line(change)
        if not changes:
            yield KEEPALIVE
        await explainer.wait_objects_changed(KEEPALIVE_SECONDS)


def diff_objects(before: Mapping[ObjectKey, Kind], after: Mapping[ObjectKey, Kind]) -> list[Change]:
    """Deletions first, so that a renamed object never shows twice. An object made anew is deleted and added."""
    replaced = {key for key in before if key in after and before[key].metadata.uid != after[key].metadata.uid}
    gone = [key for key in before if key not in after or key in replaced]
    changes = [Change(type=ChangeType.DELETED, object=before[key].to_wire()) for key in sorted(gone, key=_order)]
    for key in sorted(after, key=_order):
        if key not in before or key in replaced:
            changes.append(Change(type=ChangeType.ADDED, object=after[key].to_wire()))
        elif before[key] is not after[key] and before[key] != after[key]:
            changes.append(Change(type=ChangeType.MODIFIED, object=after[key].to_wire()))
    return changes


def _order(key: ObjectKey) -> tuple[str, str, str]:
    return (key.kind, key.namespace, key.name)
