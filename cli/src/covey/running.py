"""What documents ask for, held against the revision of what runs. Pure.

An object in the store says what was asked for last, not what came of it: a revision that was applied and failed leaves
the one before serving, and the store has nothing more to tell. Instances carry their revision, so this compares theirs
with the one that the documents would have. Fields of an old revision are kept nowhere; so revisions are named, and
`covey why` says what keeps the new one from running.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from covey_api.instance import Instance, InstanceGoal
from covey_api.kinds import Kind, ObjectKey
from covey_api.model import Model
from covey_api.placement import Placement
from covey_controller.reconcile.revision import revision_of


@dataclass(frozen=True, slots=True)
class Running:
    """One Instance that runs on another revision than its Placement would have."""

    instance: str
    phase: str
    revision: str
    wished: str


def list_running(
    wished: Iterable[Kind], live: Iterable[Kind], instances: Iterable[Instance]
) -> Mapping[str, tuple[Running, ...]]:
    """By name of the Placement, those that the documents name or whose Model they name. `live`: Models and Placements
    of the same namespaces."""
    objects = {item.key: item for item in live}
    named = [item.key for item in wished if isinstance(item, (Model, Placement))]
    objects |= {item.key: item for item in wished if isinstance(item, (Model, Placement))}
    by_placement: dict[ObjectKey, list[Instance]] = {}
    for each in sorted(instances, key=lambda item: item.key):
        key = ObjectKey("Placement", each.metadata.namespace, each.spec.placement)
        by_placement.setdefault(key, []).append(each)
    found: dict[str, tuple[Running, ...]] = {}
    for key, item in sorted(objects.items()):
        if not isinstance(item, Placement):
            continue
        model = objects.get(ObjectKey("Model", key.namespace, item.spec.model_ref.name))
        if isinstance(model, Model) and (key in named or model.key in named):
            found[key.name] = tuple(_others(by_placement.get(key, ()), revision_of(item, model)))
    return {name: others for name, others in found.items() if others}


def _others(instances: Iterable[Instance], revision: str) -> Iterator[Running]:
    for each in instances:
        if each.spec.goal is InstanceGoal.RUN and each.spec.revision != revision:
            yield Running(each.metadata.name, each.status.phase.value, each.spec.revision, revision)


def render_running(placement: str, running: Iterable[Running]) -> str:
    """One Placement's lines, in the style of a difference."""
    lines = (f"~ instance/{each.instance} ({each.phase}): {each.revision} -> {each.wished}" for each in running)
    return "\n".join((f"placement/{placement} runs another revision:", *lines))
