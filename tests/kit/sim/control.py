"""The controller's own loops: files store, board, reconciler; in the place of HTTP, calls that carry the same JSON."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

from covey_api.messages import AskAnswer, Demand, DemandAnswer, Report
from covey_controller.authority import derive_engine_key
from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.loop import ReconcileLoop, Surroundings
from covey_controller.name_claims import NameTaken
from covey_controller.ports import InvalidSet
from covey_controller.reconcile.outcomes import Note
from covey_controller.seal import seal_instance
from covey_controller.serving.lines import render_snapshots
from covey_controller.stores.files.documents import ParsedDocument, parse_documents
from covey_controller.stores.files.store import FilesStore
from covey_controller.stores.files.writing import Disk

from kit.sim.loop import Process

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
    """Tells each note as it is said."""

    def __init__(self, on_note: Callable[[Note], None]) -> None:
        super().__init__()
        self._on_note = on_note

    def record(self, note: Note) -> bool:
        is_new = super().record(note)
        if is_new:
            self._on_note(note)
        return is_new


class Controller:
    """One controller process on the state folder."""

    def __init__(
        self, source: Path, state: Path, random: Random, disk: Disk, on_note: Callable[["Controller", Note], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def utc_now() -> datetime:
            return EPOCH + timedelta(seconds=int(loop.time()))

        def mint() -> str:
            return f"{random.getrandbits(64):016x}"

        self.store = FilesStore(source, state, parse_remembered, utc_now=utc_now, mint_uid=mint, disk=disk)
        self.board = FleetBoard(loop.time)
        self.history = ToldHistory(partial(on_note, self))
        engine_key, seal_of = partial(derive_engine_key, SECRET), partial(seal_instance, SECRET)
        around = Surroundings(mint(), engine_key, seal_of, mint, utc_now, _do_nothing, _do_nothing)
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
            order = self.board.on_demand(peer, Demand.model_validate_json(body))
            answer = DemandAnswer(term=order.term, serial=order.serial)
        else:
            assert re.fullmatch(f"nodes/{peer}/report", path), path
            try:
                answer = self.board.on_report(peer, Report.model_validate_json(body))
            except NameTaken:  # a boot that ended: nobody reads the answer
                return b""
        return answer.model_dump_json(by_alias=True, exclude_none=True).encode()

    def open_lines(self, peer: str, path: str) -> AsyncGenerator[bytes]:
        if path == "endpoints":
            return render_snapshots(self.board.watch_endpoints(peer))
        return render_snapshots(self.board.watch_assignments(peer))


async def _do_nothing(*_: object) -> None:
    """Nothing is behind a vault here."""
