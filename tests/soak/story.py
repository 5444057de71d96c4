"""What happens in a soak: two fleets with state folders of their own and three models, edited and struck in turn.

The faults and what they may cost are `kit.chaos`'s, as in the test of forty faults. What is found is written down and
the soak goes on: a page that ends with the first finding hides the second.
"""

import random
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from covey.control import Control
from covey_controller.stores.files.folder import digest_of
from kit.chaos import Chaos, Footprint, can_cut, observe_footprint
from kit.fleet import EXAMPLE, JsonObject, RunningFleet, Traffic, running_fleet
from kit.parts import applied_set, assert_nothing_doubled, count_wakeups, read, wait_converged
from kit.processes import wait_for

EDIT_SECONDS, FAULT_SECONDS, LOOK_SECONDS = 60.0, 30.0, 60.0
CUTS = 0.25
WORKERS_PER_MODEL = 2
# Of each worker after each answer, so that the machine has time for the parts and for the faults.
REST_SECONDS = 0.2
CONVERGE_SECONDS = 180.0
QUIET_SECONDS = 30.0
# The most that may be there more than before: what a part opens at a time; the store's own log (4 MiB) and what it
# remembers of the past; what an interpreter keeps of what it once took.
MORE_FILES, MORE_STATE_BYTES, MORE_MEMORY_BYTES = 30, 6_000_000, 48_000_000
# Two files of 4 MiB for each of three parts, of 1 MiB for each of three members (one of them on its way out).
MOST_LOG_BYTES = (3 * 2 * 4 + 3 * 2) * 2**20
STOP_SECONDS = 40.0
FLEETS = {"a": ("smollm2", "second"), "b": ("third",)}
WINDOWS = (2048, 4096, 8192)


@dataclass(slots=True)
class Soaked:
    """One fleet, its traffic, and the faults and edits that it went through."""

    name: str
    models: tuple[str, ...]
    fleet: RunningFleet
    traffic: Traffic
    chaos: Chaos
    edits: list[str] = field(default_factory=list)
    looks: list[tuple[float, int, Footprint]] = field(default_factory=list)
    """Seconds since the beginning, requests answered, and what the fleet took."""
    before: Footprint | None = None
    after: Footprint | None = None
    converged_seconds: float | None = None
    wakeups_per_second: float | None = None


class Story:
    """`run` takes `seconds` and some minutes more; `findings` is what must not be. Before it is over nothing holds."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.seed = seed
        self.seconds = seconds
        self.cuts = CUTS if can_cut() else 0.0
        self.findings: list[str] = []
        self.is_over = False
        self.soaked: list[Soaked] = []
        self._random = random.Random(seed)
        self._began = 0.0

    @property
    def holds(self) -> bool:
        return self.is_over and not self.findings

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.findings.append(f"ended early: {type(error).__name__}: {error}")
            raise
        self.is_over = True

    def _run(self) -> None:
        with ExitStack() as stack:
            for number, (name, models) in enumerate(FLEETS.items()):
                self.soaked.append(self._start(stack, name, models, self.seed + number))
            for each in self.soaked:
                wait_converged(each.fleet, len(each.models), CONVERGE_SECONDS)
                with each.traffic.flowing():  # connections that are kept, pages that are touched once
                    time.sleep(5)
                each.traffic.sent.clear()
                each.before = observe_footprint(each.fleet)
            self._began = time.monotonic()
            with ExitStack() as flows:
                for each in self.soaked:
                    flows.enter_context(each.traffic.flowing())
                self._soak()
                for each in self.soaked:
                    write_wishes(each.fleet, {model: {} for model in each.models})
                for each in self.soaked:
                    self._converge(each)
            for each in self.soaked:
                self._judge(each)

    def _start(self, stack: ExitStack, name: str, models: tuple[str, ...], seed: int) -> Soaked:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak")))
        write_models(folder, models)
        fleet = stack.enter_context(running_fleet(folder))
        workers = WORKERS_PER_MODEL * len(models)
        traffic = Traffic(fleet, workers, waits_for_gateway=True, models=models, rest_seconds=REST_SECONDS)
        return Soaked(name, models, fleet, traffic, Chaos(fleet, traffic, seed, self.cuts))

    def _soak(self) -> None:
        fault, edit, look = self._began + FAULT_SECONDS, self._began + EDIT_SECONDS / 2, self._began
        end = self._began + self.seconds
        while (now := time.monotonic()) < end:
            if now >= look:
                look += LOOK_SECONDS
                self._look()
            if now >= edit:
                edit += EDIT_SECONDS
                self._edit(self._random.choice(self.soaked))
            if now >= fault:
                fault += FAULT_SECONDS
                self._strike(self._random.choice(self.soaked))
            time.sleep(0.2)

    def _look(self) -> None:
        for each in self.soaked:
            each.looks.append((time.monotonic() - self._began, each.traffic.done, observe_footprint(each.fleet)))

    def _strike(self, soaked: Soaked) -> None:
        soaked.chaos.strike()
        with self._noted(f"fleet {soaked.name}, after {soaked.chaos.faults[-1] if soaked.chaos.faults else 'nothing'}"):
            assert_nothing_doubled(soaked.fleet)

    def _edit(self, soaked: Soaked) -> None:
        """Another number of replicas, another window, or what can't be read; the next edit mends that."""
        model = self._random.choice(soaked.models)
        kind = self._random.choice(("replicas", "window", "broken"))
        tokens, replicas = self._random.choice(WINDOWS), self._random.choice((1, 2))
        wishes: dict[str, dict[str, object]] = {each: {} for each in soaked.models}
        match kind:
            case "replicas":
                wishes[model] = {"replicas": replicas}
            case "window":
                wishes[model] = {"context": f"{{tokens: {tokens}}}"}
            case _:
                wishes[model] = {"replicsa": 2}
        write_wishes(soaked.fleet, wishes)
        said = ", ".join(f"{key}: {value}" for key, value in wishes[model].items())
        soaked.edits.append(f"{time.monotonic() - self._began:.0f} s: {model}: {said}")

    def _converge(self, soaked: Soaked) -> None:
        with self._noted(f"fleet {soaked.name} doesn't converge"):
            # Before the last wishes are in force it is as the ones before wanted it.
            wait_for(lambda: is_read(soaked.fleet), "the controller reads the last wishes", CONVERGE_SECONDS)
            soaked.converged_seconds = wait_converged(soaked.fleet, len(soaked.models), CONVERGE_SECONDS)
        with self._noted(f"fleet {soaked.name} doesn't serve"):
            enough = soaked.traffic.done + 5 * len(soaked.models)
            wait_for(lambda: soaked.traffic.done >= enough, "requests are answered at the end", CONVERGE_SECONDS)

    def _judge(self, soaked: Soaked) -> None:
        """Traffic is over: what was lost, what is still done, what is left, how it ends."""
        lost = soaked.chaos.unexplained()
        self.findings += [f"fleet {soaked.name}: lost without a fault: {one}" for one in lost]
        with self._noted(f"fleet {soaked.name} isn't quiet"):
            self._be_quiet(soaked)
        with self._noted(f"fleet {soaked.name} leaks"):
            self._compare(soaked)
        with self._noted(f"fleet {soaked.name} doesn't end"):
            seconds = soaked.fleet.stop()
            assert seconds < STOP_SECONDS, f"it took {seconds:.0f} s"
            wait_for(lambda: not soaked.fleet.processes(), f"{soaked.fleet.processes()} end")

    @staticmethod
    def _be_quiet(soaked: Soaked) -> None:
        """Nothing is written while nothing is asked."""
        before, began = _versions(soaked.fleet), time.monotonic()
        parts = soaked.fleet.processes_of("covey_")
        woken = count_wakeups(parts)
        time.sleep(QUIET_SECONDS)
        soaked.wakeups_per_second = (count_wakeups(parts) - woken) / (time.monotonic() - began)
        after = _versions(soaked.fleet)
        changed = {name: (before.get(name), at) for name, at in after.items() if before.get(name) != at}
        assert before, "no objects were read"
        assert not changed, f"objects changed at rest: {changed}"

    @staticmethod
    def _compare(soaked: Soaked) -> None:
        assert soaked.before is not None
        before = soaked.before

        def is_as_before() -> bool:
            after = soaked.after = observe_footprint(soaked.fleet)
            return (
                (after.processes, after.listening_ports) == (before.processes, before.listening_ports)
                and after.open_files <= before.open_files + MORE_FILES
                and _kept(after) <= _kept(before) + MORE_STATE_BYTES
                and after.log_bytes <= MOST_LOG_BYTES
                and after.memory_bytes <= before.memory_bytes + MORE_MEMORY_BYTES
            )

        try:
            wait_for(is_as_before, "the fleet takes what it took before", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}: {before}, then {soaked.after}") from None

    @contextmanager
    def _noted(self, words: str) -> Generator[None]:
        try:
            yield
        except AssertionError as error:
            self.findings.append(f"{words}: {error}")


def write_models(folder: Path, models: tuple[str, ...]) -> None:
    """The example's model and placement, for each of these names."""
    model = (EXAMPLE / "model.yaml").read_text()
    for name in models:
        (folder / f"{name}.model.yaml").write_text(model.replace("name: smollm2}", f"name: {name}}}"))
        (folder / f"{name}.yaml").write_text(render_placement(name, {}))


def render_placement(name: str, wish: dict[str, object]) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in wish.items())
    return (EXAMPLE / "placement.yaml").read_text().replace("name: smollm2}", f"name: {name}}}") + lines


def write_wishes(fleet: RunningFleet, wishes: dict[str, dict[str, object]]) -> None:
    """Save what changed, as an editor does; whether it is read is seen at the end."""
    for name, wish in wishes.items():
        path, text = fleet.folder / f"{name}.yaml", render_placement(name, wish)
        if path.read_text() != text:
            path.write_text(text)


def is_read(fleet: RunningFleet) -> bool:
    """Whether the set in force is what the folder has now."""
    return applied_set(fleet) == digest_of({path.name: path.read_bytes() for path in fleet.folder.glob("*.yaml")})


def _kept(footprint: Footprint) -> int:
    return footprint.state_bytes - footprint.log_bytes


def _versions(fleet: RunningFleet) -> dict[str, str]:
    """The version of each object; none while nobody answers."""
    found: dict[str, str] = {}
    for plural in ("models", "placements", "instances", "cnodes"):
        for item in read(fleet, _lister(plural), []):
            found[f"{plural}/{item['metadata']['name']}"] = str(item["metadata"]["resourceVersion"])
    return found


def _lister(plural: str) -> Callable[[Control], list[JsonObject]]:
    return lambda control: control.list_objects(plural)
