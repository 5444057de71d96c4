"""A scenario's file and all that it names: documents that are read, checked and ready to be simulated.

Nodes, Models and Placements are read as `covey plan --fleet` reads them. What is wrong is told with file and line, all
of a file at once.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from covey_api.engines import Task
from covey_api.kinds import Kind
from covey_api.model import Model
from covey_api.placement import Placement
from covey_controller.stores.files.yaml_positions import YamlNode
from covey_simulator.reading import Known, ReadScenario, ScenarioInvalid, check_names, parse_scenario
from covey_simulator.run import Staged

from covey.described_fleet import DescribedFleet, describe, read_entries
from covey.documents import read_documents
from covey.errors import CommandError, ExitCode


def stage_scenario(name: str, namespace: str) -> Staged:
    """`name`: the scenario's file. CommandError with all that is wrong with it, or with the first wrong document."""
    path = Path(name)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read '{name}': {error.strerror}", ExitCode.WRONG_USE) from error
    try:
        return _stage(parse_scenario(text), path, namespace)
    except ScenarioInvalid as invalid:
        lines = [f"{name}:{fault.line}: {fault.message}" for fault in invalid.faults]
        raise CommandError("\n".join(lines), ExitCode.WRONG_USE) from None


def _stage(read: ReadScenario, path: Path, namespace: str) -> Staged:
    scenario = read.scenario
    fleet = _describe(read, scenario.files, (), path, namespace)
    applied = {
        index: _only_wishes(_describe(read, event.files, ("events", index), path, namespace), path, read, index)
        for index, event in enumerate(scenario.events)
        if event.files or event.objects
    }
    later = [item for each in applied.values() for item in each]
    nodes = [node.metadata.name for node in fleet.nodes]
    check_names(read, _know(nodes, (*fleet.documents, *later), namespace))
    return Staged(scenario, fleet.nodes, fleet.documents, applied, namespace)


def _describe(
    read: ReadScenario, files: Iterable[str], place: tuple[str | int, ...], path: Path, namespace: str
) -> DescribedFleet:
    def entries() -> Iterator[tuple[str, YamlNode]]:
        texts = read_documents(tuple(str(path.parent / file) for file in files)).texts
        # A folder may hold the scenario itself, which is no object.
        yield from read_entries(pair for pair in texts if not _is_same(pair[0], path))
        yield from ((str(path), entry) for entry in read.written(*place))

    return describe(entries(), namespace)


def _is_same(name: str, path: Path) -> bool:
    return Path(name).resolve() == path.resolve()


def _only_wishes(fleet: DescribedFleet, path: Path, read: ReadScenario, index: int) -> tuple[Kind, ...]:
    """What an event may apply: machines neither come nor change by a document."""
    if fleet.nodes:
        line = read.root.line_of(("events", index))
        must = "must not apply Nodes: describe them in the scenario's own `files` or `objects`"
        raise CommandError(f"{path}:{line}: `events[{index}]` {must}", ExitCode.WRONG_USE)
    return fleet.documents


def _know(nodes: list[str], objects: Iterable[Kind], namespace: str) -> Known:
    items = list(objects)
    models = [item for item in items if isinstance(item, Model) and Task.CHAT in item.spec.tasks]
    return Known(
        nodes=nodes,
        placements={(item.metadata.namespace, item.metadata.name) for item in items if isinstance(item, Placement)},
        models={name for item in models for name in (item.metadata.name, *item.spec.aliases)},
        namespace=namespace,
    )
