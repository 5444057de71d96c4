"""The files store on a real folder with a real watch: what people do to files, and what comes of it."""

import asyncio
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from covey_api.kinds import ObjectKey
from covey_api.meta import ObjectMeta
from covey_api.node import Node
from covey_api.placement import Placement, PlacementStatus
from covey_controller.ports import Applied, Conflict, InvalidSet
from covey_controller.stores.files import rest
from covey_controller.stores.files.database import StoreFault
from covey_controller.stores.files.rest import REST_SECONDS, VANISH_SECONDS
from covey_controller.stores.files.store import FilesStore, store_paths
from covey_controller.stores.files.writing import Disk
from kit import builders
from kit.documents import model_key, model_yaml, node_key, placement_key, placement_yaml, running_store

pytestmark = pytest.mark.integration

# A busy machine needs longer than the store does.
SOON_SECONDS = 20.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a Model and a Placement."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model.yaml").write_text(model_yaml())
    (folder / "placement.yaml").write_text(placement_yaml())
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "controller"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


async def keys_become(store: FilesStore, *keys: ObjectKey) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        while set(found := await store.list_objects()) != set(keys):
            assert await store.wait_changed(SOON_SECONDS), f"still {sorted(map(str, found))}"


async def replicas(store: FilesStore) -> int:
    found = (await store.list_objects())[placement_key()]
    assert isinstance(found, Placement)
    return found.spec.replicas


async def assert_quiet(store: FilesStore, seconds: float = REST_SECONDS + 0.6) -> None:
    """Nothing changes for longer than it would take."""
    before = await store.list_objects()
    assert not await store.wait_changed(seconds)
    assert await store.list_objects() == before


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def replace_file(path: Path, text: str) -> None:
    """Saves as most editors do."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)


BOTH = (model_key(), placement_key())


def test_saved_file_is_in_force_once_it_has_rested(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            began = time.monotonic()
            (source / "placement.yaml").write_text(placement_yaml(replicas=2))
            assert await store.wait_changed(SOON_SECONDS)
            assert time.monotonic() - began >= REST_SECONDS
            assert await replicas(store) == 2
            replace_file(source / "placement.yaml", placement_yaml(replicas=3))
            assert await store.wait_changed(SOON_SECONDS)
            assert await replicas(store) == 3
            found = store.source_state()
            assert found.applied == found.wanted != ""
            assert found.errors == ()
            assert found.notices == ()

    run(scenario())


def test_rename_within_the_folder_changes_nothing(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            (source / "sub").mkdir()
            os.rename(source / "placement.yaml", source / "sub" / "renamed.yml")
            await assert_quiet(store)
            await until(lambda: store.source_state().applied == store.source_state().wanted)
            # In two steps, the file gone in between for longer than a rest.
            os.rename(source / "model.yaml", source / "model.away")
            await asyncio.sleep(REST_SECONDS + 0.3)
            os.rename(source / "model.away", source / "model.yaml")
            await assert_quiet(store, VANISH_SECONDS + 0.6)

    run(scenario())


def test_editor_that_removes_before_it_writes_restarts_nothing(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            before = (await store.list_objects())[placement_key()].metadata.uid
            (source / "placement.yaml").unlink()
            await asyncio.sleep(REST_SECONDS + 0.3)
            (source / "placement.yaml").write_text(placement_yaml(replicas=2))
            assert await store.wait_changed(SOON_SECONDS)
            assert (await store.list_objects())[placement_key()].metadata.uid == before
            assert await replicas(store) == 2

    run(scenario())


def test_half_written_save_waits_for_the_rest_of_it(source: Path, state: Path) -> None:
    async def scenario() -> None:
        text = placement_yaml(replicas=2)
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            (source / "placement.yaml").write_text("")
            for part in (text[:50], text[50:90], text[90:]):
                append(source / "placement.yaml", part)
                await asyncio.sleep(REST_SECONDS / 3)
            assert await store.wait_changed(SOON_SECONDS)
            assert await replicas(store) == 2
            assert store.source_state().errors == ()

    run(scenario())


def test_half_written_save_that_rests_is_refused_and_then_completed(
    source: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            applied = store.source_state().applied
            (source / "placement.yaml").write_text(placement_yaml()[:70])
            (source / "other.yaml").write_text(placement_yaml("other"))
            await until(lambda: bool(store.source_state().errors))
            assert store.source_state().applied == applied != store.source_state().wanted
            await assert_quiet(store, VANISH_SECONDS + 0.6)
            assert [message for message in caplog.messages if message.startswith("placement.yaml:")] == [
                f"{error.file}:{error.line}: {error.message}" for error in store.source_state().errors
            ]
            (source / "placement.yaml").write_text(placement_yaml(replicas=2))
            await keys_become(store, *BOTH, placement_key("other"))
            assert store.source_state().errors == ()

    run(scenario())


def test_names_of_unsaved_files_are_no_change(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            for name in (".hidden.yaml", "a.yaml~", ".a.yaml.swp", "a.yaml.tmp", "notes.txt"):
                (source / name).write_text(placement_yaml("other"))
            await assert_quiet(store)
            assert store.source_state().errors == ()

    run(scenario())


def test_link_is_followed_inside_and_refused_outside(source: Path, state: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "outside.yaml").write_text(placement_yaml("outside"))
        (source / ".versions").mkdir()
        (source / ".versions" / "one.yaml").write_text(placement_yaml("linked"))
        async with running_store(source, state) as store:
            (source / "linked.yaml").symlink_to(".versions/one.yaml")
            await keys_become(store, *BOTH, placement_key("linked"))
            (source / "out.yaml").symlink_to(tmp_path / "outside.yaml")
            (source / "later.yaml").write_text(placement_yaml("later"))
            await until(lambda: bool(store.source_state().errors))
            (error,) = store.source_state().errors
            assert error.file == "out.yaml"
            assert str(tmp_path / "outside.yaml") in error.message
            assert placement_key("later") not in await store.list_objects()
            (source / "out.yaml").unlink()
            await keys_become(store, *BOTH, placement_key("linked"), placement_key("later"))

    run(scenario())


def test_file_without_documents_deletes_what_it_held(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            (source / "empty.yaml").write_text("")
            await keys_become(store, *BOTH)
            began = time.monotonic()
            (source / "placement.yaml").write_text("# only words\n")
            await keys_become(store, model_key())
            assert time.monotonic() - began >= VANISH_SECONDS

    run(scenario())


def test_object_given_twice_is_refused_with_both_places(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            (source / "twice.yaml").write_text(f"# words\n---\n{placement_yaml(replicas=5)}")
            await until(lambda: bool(store.source_state().errors))
            (error,) = store.source_state().errors
            assert "placement.yaml:1" in error.message
            assert "twice.yaml:3" in error.message
            assert await replicas(store) == 1

    run(scenario())


def test_all_documents_of_a_file_count(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            (source / "more.yaml").write_text("---\n".join(placement_yaml(name) for name in ("a", "b", "c")))
            await keys_become(store, *BOTH, *(placement_key(name) for name in ("a", "b", "c")))

    run(scenario())


@pytest.mark.parametrize("how", ["last file", "folder"])
def test_empty_or_missing_source_deletes_nothing_and_says_so_once(
    source: Path, state: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing_was_deleted(messages: tuple[str, ...]) -> bool:
        return any("nothing was deleted, what ran keeps running" in message for message in messages)

    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            if how == "folder":
                shutil.rmtree(source)
            else:
                (source / "model.yaml").unlink()
                (source / "placement.yaml").unlink()
            await until(lambda: nothing_was_deleted(store.source_state().notices))
            await assert_quiet(store, VANISH_SECONDS + 0.6)
        async with running_store(source, state) as store:
            assert set(await store.list_objects()) == set(BOTH), "not after a restart either"
            # Named deletions are no accident.
            await store.delete_documents(BOTH)
            await keys_become(store)
            os.makedirs(source, exist_ok=True)
            (source / "again.yaml").write_text(placement_yaml("again"))
            await keys_become(store, placement_key("again"))
            assert store.source_state().notices == ()

    caplog.set_level(logging.WARNING)
    run(scenario())
    assert len([message for message in caplog.messages if nothing_was_deleted((message,))]) == 2


def test_empty_source_deletes_when_it_was_allowed(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state, allow_empty=True) as store:
            await keys_become(store, *BOTH)
            shutil.rmtree(source)
            await keys_become(store)

    run(scenario())


def test_folder_that_appears_later_and_is_replaced_is_followed(tmp_path: Path, state: Path) -> None:
    async def scenario() -> None:
        source = tmp_path / "source"
        async with running_store(source, state) as store:
            assert await store.list_objects() == {}
            for name in ("a", "b", "c"):
                shutil.rmtree(source, ignore_errors=True)
                (source / "deep").mkdir(parents=True)
                (source / "deep" / "a.yaml").write_text(placement_yaml(name))
                await keys_become(store, placement_key(name))
            new = tmp_path / "new"
            new.mkdir()
            (new / "d.yaml").write_text(placement_yaml("d"))
            os.rename(source, tmp_path / "old")
            os.rename(new, source)
            await keys_become(store, placement_key("d"))

    run(scenario())


def test_switched_link_is_followed(tmp_path: Path, state: Path) -> None:
    async def scenario() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.yaml").write_text(placement_yaml(name))
        (tmp_path / "current").symlink_to("one")
        async with running_store(tmp_path / "current", state) as store:
            await keys_become(store, placement_key("one"))
            (tmp_path / "next").symlink_to("two")
            os.replace(tmp_path / "next", tmp_path / "current")
            await keys_become(store, placement_key("two"))

    run(scenario())


def test_single_file_is_followed_through_every_way_of_saving(tmp_path: Path, state: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "fleet.yaml"
        file.write_text(placement_yaml())
        async with running_store(file, state) as store:
            await keys_become(store, placement_key())
            (tmp_path / "neighbour.yaml").write_text(placement_yaml("other"))
            replace_file(file, placement_yaml(replicas=2))
            assert await store.wait_changed(SOON_SECONDS)
            file.unlink()
            file.write_text(f"{placement_yaml(replicas=2)}---\n{model_yaml()}")
            await keys_become(store, *BOTH)
            assert await replicas(store) == 2
            assert await store.apply_documents(placement_yaml(replicas=3), "given.yaml") == (
                Applied(placement_key(), "configured"),
            )
            assert file.read_text() == f"{placement_yaml(replicas=3)}---\n{model_yaml()}"

    run(scenario())


def test_restart_with_a_broken_source_runs_the_last_good_set(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            before = await store.list_objects()
            applied = store.source_state().applied
        (source / "model.yaml").write_text("kind: [")
        (source / "placement.yaml").unlink()
        async with running_store(source, state) as store:
            assert await store.list_objects() == before
            assert store.source_state().applied == applied != store.source_state().wanted
            assert store.source_state().errors[0].file == "model.yaml"

    run(scenario())


def test_applied_documents_are_in_force_at_once_and_are_files(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            text = f"# mine\n{placement_yaml('new')}---\n{placement_yaml(replicas=4)}---\n{model_yaml()}"
            assert [applied.outcome for applied in await store.apply_documents(text, "given.yaml")] == [
                "created",
                "configured",
                "unchanged",
            ]
            assert await store.wait_changed(0)
            assert set(await store.list_objects()) == {*BOTH, placement_key("new")}
            assert (source / "placement-new.yaml").read_text() == f"# mine\n{placement_yaml('new')}"
            assert (source / "placement.yaml").read_text() == placement_yaml(replicas=4)
            assert store.source_state().applied == store.source_state().wanted
            assert {outcome.outcome for outcome in await store.apply_documents(text, "given.yaml")} == {"unchanged"}
            deleted = await store.delete_documents((placement_key("new"),))
            assert deleted == (Applied(placement_key("new"), "deleted"),)
            assert set(await store.list_objects()) == set(BOTH)
            assert not (source / "placement-new.yaml").exists()
            await assert_quiet(store)
        async with running_store(source, state) as store:
            assert await replicas(store) == 4

    run(scenario())


def test_refused_apply_writes_nothing(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            before = contents(source)
            with pytest.raises(InvalidSet, match=r"given\.yaml:\d+: .*`spec.replicas`"):
                await store.apply_documents(f"{placement_yaml('x')}---\n{placement_yaml('z', -1)}", "given.yaml")
            with pytest.raises(KeyError, match="placement/none"):
                await store.delete_documents((placement_key(), placement_key("none")))
            with pytest.raises(KeyError):
                await store.delete_documents((ObjectKey("Instance", "default", "smollm2-0"),))
            assert contents(source) == before
            (source / "broken.yaml").write_text("kind: [")
            await until(lambda: bool(store.source_state().errors))
            with pytest.raises(InvalidSet, match=r"broken\.yaml"):
                await store.apply_documents(placement_yaml("x"), "given.yaml")
            assert not (source / "placement-x.yaml").exists()

    run(scenario())


def test_apply_waits_for_a_save_in_progress_and_both_count(
    source: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "REST_SECONDS", 4.0)  # a busy machine may pause for seconds between both pieces

    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            text = placement_yaml("theirs")
            append(source / "theirs.yaml", text[:80])
            async with asyncio.TaskGroup() as group:
                applying = group.create_task(store.apply_documents(placement_yaml("ours"), "given.yaml"))
                await asyncio.sleep(REST_SECONDS / 2)
                append(source / "theirs.yaml", text[80:])
                assert not applying.done()
            await keys_become(store, *BOTH, placement_key("theirs"), placement_key("ours"))

    run(scenario())


class EditingDisk(Disk):
    """Somebody saves a file just as ours are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.edits = 0

    def write_temporary(self, path: str, content: bytes, mode: int) -> None:
        super().write_temporary(path, content, mode)
        if self.edits == 0:
            self.edits += 1
            self._path.write_text(f"# theirs\n{placement_yaml(replicas=7)}")


def test_edit_by_somebody_else_between_reading_and_writing_is_not_lost(source: Path, state: Path) -> None:
    async def scenario() -> None:
        disk = EditingDisk(source / "placement.yaml")
        async with running_store(source, state, disk=disk) as store:
            await keys_become(store, *BOTH)
            labelled = placement_yaml(replicas=9)
            text = f"{labelled}---\n{placement_yaml('ours')}"
            results = await store.apply_documents(text, "given.yaml")
            assert [result.outcome for result in results] == ["configured", "created"]
            assert disk.edits == 1
            assert await replicas(store) == 9
            assert set(await store.list_objects()) == {*BOTH, placement_key("ours")}

    run(scenario())


class Killed(BaseException):
    """The process ended here."""


class KillingDisk(Disk):
    """Ends the process before its step number `step`."""

    def __init__(self, step: int) -> None:
        self._left = step

    def _count(self) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1

    def write_temporary(self, path: str, content: bytes, mode: int) -> None:
        self._count()
        super().write_temporary(path, content, mode)

    def rename(self, temporary: str, path: str) -> None:
        self._count()
        super().rename(temporary, path)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_folder(self, folder: str) -> None:
        self._count()
        super().sync_folder(folder)


@pytest.mark.parametrize("step", range(5))
def test_apply_that_is_cut_off_is_whole_after_the_next_start(source: Path, state: Path, step: int) -> None:
    async def cut_off() -> None:
        store_running = running_store(source, state, disk=KillingDisk(step))
        async with store_running as store:
            await keys_become(store, *BOTH)
            text = f"{placement_yaml(replicas=2)}---\n{placement_yaml('new')}"
            async with asyncio.timeout(SOON_SECONDS):
                await store.apply_documents(text, "given.yaml")

    async def scenario() -> None:
        async with running_store(source, state) as store:
            objects = await store.list_objects()
            assert set(objects) == {*BOTH, placement_key("new")}
            assert await replicas(store) == 2
            assert store.source_state().errors == ()
            assert sorted(contents(source)) == [
                "model.yaml",
                "placement-new.yaml",
                "placement.yaml",
            ]

    with pytest.raises((Killed, Conflict, BaseExceptionGroup)):
        run(cut_off())
    run(scenario())


def test_damaged_store_is_moved_aside_and_rebuilt_from_the_source(source: Path, state: Path) -> None:
    path, _ = store_paths(source, state)

    async def scenario() -> None:
        async with running_store(source, state) as store:
            await store.create(builders.instance())
            await keys_become(store, *BOTH, builders.instance().key)
        path.write_bytes(os.urandom(8192))
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            (notice,) = store.source_state().notices
            assert f"{path.name}.corrupt-1" in notice
            assert path.with_name(f"{path.name}.corrupt-1").exists()

    run(scenario())


@pytest.mark.parametrize("which", ["lock", "store"])
def test_leader_whose_files_were_taken_away_stops_writing_and_may_begin_anew(
    source: Path, state: Path, which: str
) -> None:
    async def scenario() -> None:
        async with running_store(source, state, leads=False) as store:
            lease = await store.acquire_lease("first")
            await keys_become(store, *BOTH)
            for path in store_paths(source, state):
                if path.suffix == (".lock" if which == "lock" else ".sqlite"):
                    path.unlink()
            with pytest.raises(Conflict, match="doesn't lead any more"):
                await store.create(builders.instance())
            assert lease.lost.is_set()
            again = await store.acquire_lease("first")
            assert again.term > lease.term
            await keys_become(store, *BOTH)
            await store.create(builders.instance())
            await keys_become(store, *BOTH, builders.instance().key)

    run(scenario())


def test_deleted_lock_permits_no_two_leaders(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state, leads=False) as first:
            lease = await first.acquire_lease("first")
            store_paths(source, state)[1].unlink()
            async with running_store(source, state, leads=False) as second:
                later = await second.acquire_lease("second")
                assert later.term > lease.term
                with pytest.raises(Conflict):
                    await first.create(builders.instance())
                with pytest.raises(Conflict):
                    await first.apply_documents(placement_yaml("x"), "given.yaml")
                await second.create(builders.instance())

    run(scenario())


def test_full_disk_is_said_and_survived(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            await keys_become(store, *BOTH)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            try:
                with pytest.raises(StoreFault, match="can't be written"):
                    await store.create(builders.instance())
                (source / "placement.yaml").write_text(placement_yaml(replicas=2))
                await until(lambda: any("can't be written" in notice for notice in store.source_state().notices))
                assert await replicas(store) == 1
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert await store.wait_changed(SOON_SECONDS)
            assert await replicas(store) == 2
            await until(lambda: store.source_state().notices == ())
            await store.create(builders.instance())

    run(scenario())


def test_joined_node_is_told_from_a_document_by_what_deleting_does(source: Path, state: Path) -> None:
    async def scenario() -> None:
        async with running_store(source, state) as store:
            joined = await store.create(Node(metadata=ObjectMeta(name="a")))
            assert joined.metadata.uid
            await store.delete_documents((node_key(),))
            await keys_become(store, *BOTH)

    run(scenario())


LEADER = """
import asyncio, sys
from pathlib import Path
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.store import FilesStore

async def lead():
    store = FilesStore(Path(sys.argv[1]), Path(sys.argv[2]), parse_documents)
    async with asyncio.TaskGroup() as group:
        group.create_task(store.run())
        lease = await store.acquire_lease("killed")
        await store.list_objects()
        print(lease.term, flush=True)

asyncio.run(lead())
"""


def test_killed_leader_is_followed_by_the_one_that_waits(source: Path, state: Path) -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER, str(source), str(state)], stdout=subprocess.PIPE)

    async def scenario() -> None:
        assert leader.stdout is not None
        term = int(await asyncio.to_thread(leader.stdout.readline))
        async with running_store(source, state, leads=False) as store:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.6):
                    await store.acquire_lease("waiting")
            leader.send_signal(signal.SIGKILL)
            async with asyncio.timeout(SOON_SECONDS):
                lease = await store.acquire_lease("waiting")
            assert lease.term == term + 1
            await keys_become(store, *BOTH)
            await store.write_status(placement_key(), PlacementStatus(observed_generation=1))

    try:
        run(scenario())
    finally:
        leader.kill()
        leader.wait()
        if leader.stdout is not None:
            leader.stdout.close()
