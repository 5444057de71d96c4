"""What is stored, looked through once: by key, by kind, and what finalizers ask for.

Most plans come of a report, and find the very objects that the last plan had: then they take its index too. It is kept
in `Memory`, and the objects themselves are its key. Nothing of a node, a gateway or the time may be in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TypeVar

from covey_api.access_key import AccessKey
from covey_api.fleet import Fleet
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import DRAIN_FINALIZER
from covey_api.model import Model
from covey_api.node import Node
from covey_api.placement import Placement

K = TypeVar("K", bound=Kind)
# A tuple: quicker than a union.
HELD = (Placement, Instance, Node)


@dataclass(frozen=True, slots=True)
class Indexed:
    """All objects. Everything is sorted by key."""

    objects: tuple[Kind, ...]
    by_key: Mapping[ObjectKey, Kind]
    fleet: Fleet | None
    models: Mapping[ObjectKey, Model]
    placements: Mapping[ObjectKey, Placement]
    """Without those that were let go of; so the Instances."""
    has_priorities: bool
    """Whether some Placement is of another priority than the rest."""
    instances: Mapping[ObjectKey, Instance]
    nodes: tuple[Node, ...]
    keys: tuple[AccessKey, ...]
    leaving: tuple[Kind, ...]
    """What is being deleted."""
    taken_names: frozenset[ObjectKey]
    """Of Instances that are another version's, or let go of and kept by somebody else: not to be made again."""
    unreadable: frozenset[ObjectKey]
    """Placements of another version: what runs by them goes on."""
    finalizing: tuple[Kind, ...]
    """What is to be held by a finalizer, and isn't; what nobody can read, and is to be let go of."""
    placements_of: Mapping[ObjectKey, Sequence[ObjectKey]]
    """Placements by the Model that they name, whether that is there or not."""
    refused_aliases: Mapping[ObjectKey, Mapping[str, str]]
    """Per Model, the aliases that it doesn't get, each with the Model that has it."""


def index_again(objects: tuple[Kind, ...], known: Indexed | None) -> Indexed:
    """As the last plan had them, while they are the very same."""
    if known is not None and len(known.objects) == len(objects) and all(map(is_, known.objects, objects)):
        return known
    return index_objects(objects)


def index_objects(objects: Iterable[Kind]) -> Indexed:
    whole = tuple(objects)
    found = {item.key: item for item in whole}
    by_key = {key: found[key] for key in sorted(found)}
    by_type: dict[type[Kind], dict[ObjectKey, Kind]] = {}
    odd: list[Kind] = []
    gone: set[ObjectKey] = set()
    finalizing: list[Kind] = []
    for key, item in by_key.items():
        kind = type(item)
        by_type.setdefault(kind, {})[key] = item
        if kind is Unreadable or item.metadata.deletion_timestamp is not None:
            odd.append(item)
            if is_gone(item):
                gone.add(key)
            if is_unreadable(item) and is_leaving(item) and is_held(item):
                finalizing.append(item)
        elif isinstance(item, HELD) and not is_held(item):
            finalizing.append(item)

    def all_of(kind: type[K]) -> dict[ObjectKey, K]:
        return {key: item for key, item in by_type.get(kind, {}).items() if isinstance(item, kind)}

    def present(kind: type[K]) -> dict[ObjectKey, K]:
        return {key: item for key, item in all_of(kind).items() if key not in gone}

    models, placements = all_of(Model), present(Placement)
    placements_of: dict[ObjectKey, list[ObjectKey]] = {}
    for key, placement in placements.items():
        placements_of.setdefault(ObjectKey("Model", key.namespace, placement.spec.model_ref.name), []).append(key)
    return Indexed(
        objects=whole,
        by_key=by_key,
        fleet=next(iter(all_of(Fleet).values()), None),
        models=models,
        placements=placements,
        has_priorities=len({each.spec.priority for each in placements.values()}) > 1,
        instances=present(Instance),
        nodes=tuple(all_of(Node).values()),
        keys=tuple(all_of(AccessKey).values()),
        leaving=tuple(item for item in odd if is_leaving(item)),
        taken_names=_taken_names(odd),
        unreadable=_unreadable_placements(odd),
        finalizing=tuple(finalizing),
        placements_of=placements_of,
        refused_aliases=_refuse_aliases(models),
    )


def is_held(item: Kind) -> bool:
    return DRAIN_FINALIZER in item.metadata.finalizers


def is_leaving(item: Kind) -> bool:
    """Its deletion was asked for."""
    return item.metadata.deletion_timestamp is not None


def is_gone(item: Kind) -> bool:
    """Let go of already; only its name is still taken."""
    return is_leaving(item) and not is_held(item) and isinstance(item, Placement | Instance)


def is_unreadable(item: Kind) -> bool:
    return type(item) is Unreadable


def _taken_names(odd: Iterable[Kind]) -> frozenset[ObjectKey]:
    """Of Instances that a plan doesn't see, and must not make again."""
    return frozenset(
        item.key for item in odd if (is_unreadable(item) or is_gone(item)) and item.key.kind == Instance.__name__
    )


def _unreadable_placements(odd: Iterable[Kind]) -> frozenset[ObjectKey]:
    """Of which nobody knows what they ask for: what runs by them goes on."""
    return frozenset(
        item.key for item in odd if is_unreadable(item) and item.key.kind == Placement.__name__ and not is_leaving(item)
    )


def _refuse_aliases(models: Mapping[ObjectKey, Model]) -> dict[ObjectKey, dict[str, str]]:
    """By its name, or as the older one. A name comes before any alias: else a new Model could take the requests of one
    that serves.
    """
    if not any(model.spec.aliases for model in models.values()):
        return {}
    by_age = sorted(models.items(), key=lambda item: (item[1].metadata.creation_timestamp, item[0].name))
    owners = {(key.namespace, key.name): key.name for key in models}
    refused: dict[ObjectKey, dict[str, str]] = {}
    for key, model in by_age:
        for alias in model.spec.aliases:
            owner = owners.setdefault((key.namespace, alias), key.name)
            if owner != key.name:
                refused.setdefault(key, {})[alias] = owner
    return refused
