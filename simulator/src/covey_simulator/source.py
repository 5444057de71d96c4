"""The source of a scenario: objects as files in a folder, as their author would save them."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import API_VERSION
from covey_api.node import Node
from covey_api.placement import Placement

from covey_simulator.disk import stamp_file
from covey_simulator.wishes import Wishes


class ScenarioSource:
    """Keeps `wishes` true."""

    def __init__(self, folder: Path, wishes: Wishes) -> None:
        self._folder = folder
        self._wishes = wishes
        self._objects: dict[ObjectKey, Kind] = {}
        self._ticks: Iterator[int] = itertools.count(1)

    @property
    def placements(self) -> Mapping[ObjectKey, Placement]:
        """As they are wished now."""
        return {key: item for key, item in sorted(self._objects.items()) if isinstance(item, Placement)}

    def apply(self, objects: Iterable[Kind], now: float) -> None:
        for item in objects:
            self._objects[item.key] = item
            if isinstance(item, Placement):
                self._wishes.wished_at.setdefault((item.metadata.namespace, item.metadata.name), now)
            if isinstance(item, Node):
                self._wishes.cordons[item.metadata.name] = item.spec.unschedulable
                self._wishes.changed_at[item.metadata.name] = now
            self._save(item)

    def delete(self, key: ObjectKey) -> bool:
        """False if it isn't there."""
        if self._objects.pop(key, None) is None:
            return False
        self._wishes.wished_at.pop((key.namespace, key.name), None)
        (self._folder / _name_file(key)).unlink()
        return True

    def scale(self, key: ObjectKey, replicas: int, now: float) -> bool:
        """False if there is no such Placement, or it scales by itself."""
        found = self._objects.get(key)
        if not isinstance(found, Placement) or found.spec.scaling is not None:
            return False
        self.apply([found.changed(spec=found.spec.changed(replicas=replicas))], now)
        return True

    def cordon(self, name: str, *, is_on: bool, now: float) -> None:
        found = self._objects[ObjectKey("Node", "", name)]
        if isinstance(found, Node):
            self.apply([found.changed(spec=found.spec.changed(unschedulable=is_on))], now)

    def _save(self, item: Kind) -> None:
        """As an editor saves: another file takes the name."""
        path = self._folder / _name_file(item.key)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps(_render(item), indent=1))
        stamp_file(str(temporary), next(self._ticks))
        temporary.rename(path)


def _name_file(key: ObjectKey) -> str:
    return f"{key.kind.lower()}-{key.namespace}-{key.name}.json"


def _render(item: Kind) -> dict[str, Any]:
    wire = item.to_wire()
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {name: wire["metadata"][name] for name in kept if wire["metadata"].get(name)}
    return {"apiVersion": API_VERSION, "kind": item.key.kind, "metadata": metadata, "spec": wire["spec"]}
