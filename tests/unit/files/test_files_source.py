"""Whatever people do to the files, the running store ends where a fresh start on the same files would."""

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from covey_api.kinds import Kind, ObjectKey
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.database import open_database
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.records import Records
from covey_controller.stores.files.request import Apply, Delete
from covey_controller.stores.files.source import FolderSource
from covey_controller.stores.files.writing import Disk
from covey_simulator.virtual_time import VirtualTimeLoop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.documents import placement_key, placement_yaml

T = TypeVar("T")
NAMES = ("a", "b", "c")
FILES = ("one.yaml", "two.yaml", "sub/three.yaml")
# Past every rest, and past the slow look that notices what no watch signals here.
SETTLED_SECONDS = 30.0


@dataclass(frozen=True)
class Written:
    """A file is saved with these objects."""

    file: str
    objects: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Broken:
    file: str


@dataclass(frozen=True)
class Removed:
    file: str


@dataclass(frozen=True)
class Renamed:
    file: str
    to: str


@dataclass(frozen=True)
class Applied:
    name: str
    replicas: int


@dataclass(frozen=True)
class Deleted:
    name: str


Edit = Written | Broken | Removed | Renamed | Applied | Deleted
OBJECTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
FILE = st.sampled_from(FILES)
EDITS = st.one_of(
    st.builds(Written, FILE, OBJECTS),
    st.builds(Removed, FILE),
    st.builds(Renamed, FILE, FILE),
    st.builds(Applied, st.sampled_from(NAMES), st.integers(1, 3)),
    st.builds(Deleted, st.sampled_from(NAMES)),
    st.builds(Written, FILE, st.just(())),
    st.builds(Broken, FILE),
)
BEGINNING: tuple[tuple[float, Edit], ...] = (
    (1.0, Written("one.yaml", (("a", 1), ("b", 1)))),
    (0.0, Written("two.yaml", (("c", 1),))),
)
PAUSES = st.sampled_from((0.0, 0.1, 0.4, 0.7, 1.9, 2.5, 8.0))


class Leading:
    """Leads always, on records of its own."""

    def __init__(self, path: Path) -> None:
        self.records = Records(open_database(path), lambda: True, lambda: datetime.now(UTC), lambda: "uid")
        self.records.raise_term(0)

    def is_lost(self) -> bool:
        return False

    async def on_records(self, work: Callable[[Records], T]) -> T:
        return work(self.records)


def save(path: Path, text: str, ticks: "itertools.count[int]") -> None:
    """Each save gets a time of its own: virtual time is too fast for the file system's clock."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(next(ticks), next(ticks)))


async def edit_source(folder: Path, source: FolderSource, edit: Edit, ticks: "itertools.count[int]") -> None:
    match edit:
        case Written(file, objects):
            save(folder / file, "---\n".join(placement_yaml(name, replicas) for name, replicas in objects), ticks)
        case Broken(file):
            save(folder / file, f"kind: [ # {next(ticks)}", ticks)
        case Removed(file):
            (folder / file).unlink(missing_ok=True)
        case Renamed(file, to):
            if (folder / file).exists():
                (folder / to).parent.mkdir(exist_ok=True)
                os.replace(folder / file, folder / to)
        case Applied(name, replicas):
            with contextlib.suppress(InvalidSet):
                await source.ask(Apply(placement_yaml(name, replicas), "given.yaml"))
        case Deleted(name):
            with contextlib.suppress(InvalidSet, KeyError):
                await source.ask(Delete((placement_key(name),)))


async def follow(
    folder: Path, state: Path, allow_empty: bool, steps: list[tuple[float, Edit]]
) -> tuple[Mapping[ObjectKey, Kind], str, bool]:
    """Make the edits while the source is followed. What runs in the end, of which set, and whether that is valid."""
    source = FolderSource(
        folder, parse_documents, allow_empty=allow_empty, utc_now=lambda: datetime.now(UTC), disk=Disk()
    )
    leading = Leading(state)
    ticks = itertools.count(10**18)
    following = asyncio.get_running_loop().create_task(source.follow(leading))
    await source.listed.wait()
    for pause, edit in steps:
        await asyncio.sleep(pause)
        await edit_source(folder, source, edit, ticks)
    await asyncio.sleep(SETTLED_SECONDS)
    following.cancel()
    await asyncio.wait([following])
    state_in_the_end = source.state()
    source.close()
    leading.records.close()
    return leading.records.objects, state_in_the_end.wanted, not state_in_the_end.errors


def specs(objects: Mapping[ObjectKey, Kind]) -> dict[ObjectKey, object]:
    return {key: found.model_dump()["spec"] for key, found in objects.items()}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(PAUSES, EDITS), min_size=6, max_size=12))
def test_any_edits_end_where_a_fresh_start_on_the_final_folder_does(steps: list[tuple[float, Edit]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "source"
        folder.mkdir()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            objects, wanted, is_valid = runner.run(
                follow(folder, Path(temporary) / "first.sqlite", True, [*BEGINNING, *steps])
            )
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            fresh, fresh_wanted, _ = runner.run(follow(folder, Path(temporary) / "second.sqlite", True, []))
        assert wanted == fresh_wanted
        if is_valid:
            assert specs(objects) == specs(fresh)
        else:
            assert fresh == {}
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            again, _, _ = runner.run(follow(folder, Path(temporary) / "first.sqlite", True, []))
        assert again == objects, "a restart changes nothing"
