"""The controller's own loops: files store, board, reconciler; in the place of HTTP, calls that carry the same JSON."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import AskAnswer, Demand, Report
from covey_api.meta import Status
from covey_controller.authority import derive_engine_key
from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.loop import ReconcileLoop, Surroundings
from covey_controller.name_claims import NameTaken
from covey_controller.ports import CreatedT, Event, HeldT, InvalidSet
from covey_controller.reconcile.outcomes import Note
from covey_controller.reconcile.world import World
from covey_controller.seal import seal_instance
from covey_controller.serving.lines import render_snapshots
from covey_controller.stores.files.database import StoreFault
from covey_controller.stores.files.documents import ParsedDocument, parse_documents
from covey_controller.stores.files.store import FilesStore

from covey_simulator.disk import SimDisk
from covey_simulator.loop import Process

# Long before any file's own time: a source that was just written has not rested yet, whatever the machine's clock says.
EPOCH = datetime(2001, 1, 1, tzinfo=UTC)
SECRET = b"fleet secret"
_PARSED: dict[tuple[tuple[str, bytes], ...], tuple[ParsedDocument, ...] | InvalidSet] = {}


def parse_remembered(files: Mapping[str, bytes]) -> Sequence[ParsedDocument]:
    """The real parser, once for each set: it is pure, and it is most of what a start of the controller costs."""
    key = tuple(sorted(files.items()))
    if key not in _PARSED:
        try:
            _PARSED[key] = parse_documents(files)
        except InvalidSet as invalid:
            _PARSED[key] = invalid
    found = _PARSED[key]
    if isinstance(found, InvalidSet):
        raise InvalidSet(found.errors)
    return found


class ToldHistory(History):
    """Tells each note as it is said, and each look of the leader."""

    def __init__(self, on_note: Callable[[Note], None], on_look: Callable[[], None]) -> None:
        super().__init__()
        self._on_note = on_note
        self._on_look = on_look

    def observe(self, objects: Mapping[ObjectKey, Kind], world: World, now: float) -> None:
        super().observe(objects, world, now)
        self._on_look()

    def record(self, note: Note) -> bool:
        is_new = super().record(note)
        if is_new:
            self._on_note(note)
        return is_new


class SimStore(FilesStore):
    """The real store; while its disk is full it refuses the reconciler's writes."""

    def __init__(
        self, source: Path, state: Path, random: Random, disk: SimDisk, utc_now: Callable[[], datetime]
    ) -> None:
        super().__init__(source, state, parse_remembered, utc_now=utc_now, mint_uid=partial(mint_id, random), disk=disk)
        self._disk = disk

    async def create(self, instance: CreatedT) -> CreatedT:
        self._require_space()
        return await super().create(instance)

    async def update(self, item: HeldT) -> HeldT:
        self._require_space()
        return await super().update(item)

    async def delete(self, key: ObjectKey, uid: str) -> None:
        self._require_space()
        await super().delete(key, uid)

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        self._require_space()
        await super().write_status(key, status, events)

    def _require_space(self) -> None:
        if self._disk.is_full:
            raise StoreFault("the store can't be written: database or disk is full")


def mint_id(random: Random) -> str:
    return f"{random.getrandbits(64):016x}"


class Controller:
    """One controller process on the state folder."""

    def __init__(
        self,
        source: Path,
        state: Path,
        random: Random,
        disk: SimDisk,
        on_note: Callable[["Controller", Note], None],
        on_look: Callable[[], None],
        number: int,
    ) -> None:
        self.number = number
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._started_at = loop.time()
        self._heard: dict[str, float] = {}
        """By node: when its agent's last report was taken."""

        def utc_now() -> datetime:
            return EPOCH + timedelta(seconds=int(loop.time()))

        mint = partial(mint_id, random)
        self.store = SimStore(source, state, random, disk, utc_now)
        self.board = FleetBoard(loop.time)
        self.history = ToldHistory(partial(on_note, self), on_look)
        engine_key, seal_of = partial(derive_engine_key, SECRET), partial(seal_instance, SECRET)
        around = Surroundings(
            mint(), engine_key, seal_of, mint, utc_now, _do_nothing, _do_nothing, stopwatch=lambda: 0.0
        )
        self.loop = ReconcileLoop(self.store, self.board, self.history, around)
        self.process = Process("controller", self._run)

    async def _run(self, process: Process) -> None:
        process.spawn(self.store.follow())
        await self.loop.run()

    def serve(self, peer: str, method: str, path: str, body: bytes) -> bytes:
        """What the fleet API's routes do with a call of an admitted peer."""
        if method == "PUT":
            self.board.on_answer(peer, AskAnswer.model_validate_json(body))
            return b""
        if path == "demand":
            answer = self.board.on_demand(peer, Demand.model_validate_json(body))
        else:
            if path != f"nodes/{peer}/report":
                raise LookupError(f"no route {method} {path}")
            report = Report.model_validate_json(body)
            try:
                answer = self.board.on_beat(peer, report) or self.board.on_report(peer, report)
            except NameTaken:  # a boot that ended: nobody reads the answer
                return b""
            self._heard[peer] = self._now()
        return answer.model_dump_json(by_alias=True, exclude_none=True).encode()

    def heard_at(self, node: str) -> float:
        """When it last heard this node; at the earliest when it began to listen."""
        return self._heard.get(node, self._started_at)

    def open_lines(self, peer: str, path: str) -> AsyncGenerator[bytes]:
        if path.partition("?")[0] == "endpoints":
            return render_snapshots(self.board.watch_endpoints(peer))
        return render_snapshots(self.board.watch_assignments(peer))


async def _do_nothing(*_: object) -> None:
    """Nothing is behind a vault here."""
