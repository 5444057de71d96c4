"""A scenario's text to what it says, or everything that is wrong with it: line, field, what was found, what must hold.

The same reader of YAML and the same words as for documents. What a scenario names (nodes, Placements, models) is
checked once its documents are known.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from covey_api.schema import render_document
from covey_controller.stores.files.problems import quote_all, render_path, suggest
from covey_controller.stores.files.strict import find_misfits
from covey_controller.stores.files.yaml_events import Path
from covey_controller.stores.files.yaml_positions import YamlNode, parse_yaml
from pydantic.alias_generators import to_camel

from covey_simulator.scenario import (
    MAX_NODES,
    MAX_REQUESTS,
    NEEDED,
    EventName,
    Scenario,
    ScenarioEvent,
    SteadyRequests,
)

# Names that are told where one is wrong: one line of them.
_MAX_NAMED = 10
_SAID_ALWAYS = {"at_seconds", "event"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a scenario."""

    line: int
    message: str


class ScenarioInvalid(Exception):
    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.line))
        super().__init__("; ".join(fault.message for fault in self.faults))


@dataclass(frozen=True, slots=True)
class ReadScenario:
    scenario: Scenario
    root: YamlNode
    """As it was written, with its lines."""

    def written(self, *path: str | int) -> list[YamlNode]:
        """Documents that are written out below `objects` at this place, each with its line."""
        node = self.root
        for step in (*path, "objects"):
            if isinstance(step, int):
                node = node.entries[step]
            elif step in node.fields:
                node = node.fields[step]
            else:
                return []
        return node.entries


@dataclass(frozen=True, slots=True)
class Known:
    """What a scenario may name."""

    nodes: Collection[str]
    placements: Collection[tuple[str, str]]
    """Namespace and name: those that are there at the beginning, and those that are applied later."""
    models: Collection[str]
    """Names and aliases of Models that chat."""
    namespace: str


def parse_scenario(text: bytes) -> ReadScenario:
    """ScenarioInvalid with all that is wrong with it by itself."""
    file = parse_yaml(text)
    if file.problems:
        raise ScenarioInvalid(Fault(each.line, each.message) for each in file.problems)
    if len(file.documents) != 1:
        raise ScenarioInvalid([Fault(1, f"a scenario must be one document; got {len(file.documents)}")])
    (root,) = file.documents
    value: Any = root.value
    if not isinstance(value, dict):
        message = "a scenario must be a mapping with `files` or `objects`, and `events`"
        raise ScenarioInvalid([Fault(root.line, message)])
    if problems := find_misfits(value, render_document(Scenario)):
        raise ScenarioInvalid(Fault(root.line_of(each.path, key=each.at_key), each.message) for each in problems)
    scenario = Scenario.model_validate(value)
    faults = list(_check(scenario, root))
    if faults:
        raise ScenarioInvalid(faults)
    return ReadScenario(scenario, root)


def _check(scenario: Scenario, root: YamlNode) -> Iterator[Fault]:
    if not scenario.files and not scenario.objects:
        yield Fault(root.line, "`files` or `objects` must say which nodes, Models and Placements there are")
    for index, event in enumerate(scenario.events):
        path: Path = ("events", index)
        yield from _check_fields(event, path, root)
        if scenario.duration_seconds is not None and event.ends_at > scenario.duration_seconds:
            yield _fault(
                root,
                (*path, "atSeconds"),
                f"must end within `durationSeconds` ({scenario.duration_seconds} s); it ends at {event.ends_at} s",
            )
    asked = 0
    for index, each in enumerate(scenario.requests):
        until = _until(scenario, each)
        asked += max(0, until - each.from_seconds) * each.per_minute // 60
        if until <= each.from_seconds:
            yield _fault(root, ("requests", index, "fromSeconds"), f"must be before their end, at {until} s")
    if asked > MAX_REQUESTS:
        yield _fault(
            root, ("requests",), f"must come to at most {MAX_REQUESTS} requests; got {asked}. Lower `perMinute`"
        )


def _until(scenario: Scenario, each: SteadyRequests) -> int:
    return scenario.end_seconds if each.until_seconds is None else each.until_seconds


def _check_fields(event: ScenarioEvent, path: Path, root: YamlNode) -> Iterator[Fault]:
    """Whether it has what its event needs, and nothing else."""
    needed, allowed = NEEDED[event.event]
    given = event.model_fields_set - _SAID_ALWAYS
    for name in sorted(needed - given):
        message = f"`{render_path((*path, to_camel(name)))}` must be given for event '{event.event}'"
        yield Fault(root.line_of(path), message)
    for name in sorted(given - needed - allowed):
        has = quote_all(to_camel(each) for each in sorted(needed | allowed)) or "no other field"
        message = f"must not be given: event '{event.event}' takes {has}"
        yield _fault(root, (*path, to_camel(name)), message)
    if event.event is EventName.APPLY and not event.files and not event.objects:
        yield Fault(root.line_of(path), f"`{render_path(path)}` must have `files` or `objects` for event 'Apply'")


def check_names(read: ReadScenario, known: Known) -> None:
    """ScenarioInvalid where it names what isn't there."""
    faults = list(_find_unknown(read, known))
    if faults:
        raise ScenarioInvalid(faults)


def _find_unknown(read: ReadScenario, known: Known) -> Iterator[Fault]:
    scenario, root = read.scenario, read.root
    if not known.nodes:
        yield Fault(root.line, "`files` or `objects` must describe at least one Node, as for `covey plan --fleet`")
    if len(known.nodes) > MAX_NODES:
        yield Fault(root.line, f"a simulated fleet must have at most {MAX_NODES} Nodes; got {len(known.nodes)}")
    for index, event in enumerate(scenario.events):
        path: Path = ("events", index)
        if event.node is not None and event.node not in known.nodes:
            yield _unknown(root, (*path, "node"), event.node, known.nodes)
        namespace = event.namespace or known.namespace
        if event.placement is not None and (namespace, event.placement) not in known.placements:
            names = [name for each, name in known.placements if each == namespace]
            yield _unknown(root, (*path, "placement"), event.placement, names)
        if event.gateway is not None and event.gateway > scenario.gateways:
            message = f"must be at most `gateways` ({scenario.gateways}); got {event.gateway}"
            yield _fault(root, (*path, "gateway"), message)
    for index, each in enumerate(scenario.requests):
        if each.model not in known.models:
            yield _unknown(root, ("requests", index, "model"), each.model, known.models)


def _unknown(root: YamlNode, path: Path, found: str, names: Collection[str]) -> Fault:
    shown = sorted(names)
    more = ", …" if len(shown) > _MAX_NAMED else ""
    one_of = f"must be one of {quote_all(shown[:_MAX_NAMED])}{more}" if shown else "must be declared, and nothing is"
    return _fault(root, path, f"{one_of}; got '{found}'{suggest(found, shown)}")


def _fault(root: YamlNode, path: Path, message: str) -> Fault:
    return Fault(root.line_of(path), f"`{render_path(path)}` {message}")
