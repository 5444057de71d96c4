"""All files of an edit are written or none, whatever fails and whenever the process ends."""

import os
from pathlib import Path

import pytest
from covey_controller.stores.files.folder import read_source
from covey_controller.stores.files.writing import Disk, FileChange, SourceChanged, finish_write, write_changes


class Killed(BaseException):
    """The process ended here."""


class FailingDisk(Disk):
    """Fails at one of its steps, before or after that step was carried out."""

    def __init__(self, step: int, error: BaseException, *, after: bool) -> None:
        self.left = step
        self._error = error
        self._after = after

    def _fails(self) -> bool:
        self.left -= 1
        if self.left == -1 and not self._after:
            raise self._error
        return self.left == -1

    def write_temporary(self, path: str, content: bytes, mode: int) -> None:
        fails = self._fails()
        super().write_temporary(path, content[: len(content) // 2] if fails else content, mode)
        if fails:
            raise self._error

    def rename(self, temporary: str, path: str) -> None:
        fails = self._fails()
        super().rename(temporary, path)
        if fails:
            raise self._error

    def remove(self, path: str) -> None:
        fails = self._fails()
        super().remove(path)
        if fails:
            raise self._error

    def sync_folder(self, folder: str) -> None:
        if self._fails():
            raise self._error


BEFORE = {"a.yaml": b"a1", "b.yaml": b"b1"}
AFTER = {"a.yaml": b"a2", "c.yaml": b"c2"}
# Two temporary files, three renames or removals, one folder.
STEPS = 6


def prepare(folder: Path) -> tuple[FileChange, ...]:
    for name, content in BEFORE.items():
        (folder / name).write_bytes(content)
    return tuple(
        FileChange(str(folder / name), BEFORE.get(name), AFTER.get(name)) for name in ("a.yaml", "b.yaml", "c.yaml")
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_changes_are_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    disk = FailingDisk(STEPS, OSError("never"), after=False)
    write_changes(disk, prepare(tmp_path))
    assert content(tmp_path) == AFTER
    assert disk.left == 0, "the number of steps that the other tests fail at is right"


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("after", [False, True])
def test_disk_that_refuses_leaves_everything_as_it_was(tmp_path: Path, step: int, after: bool) -> None:
    changes = prepare(tmp_path)
    with pytest.raises(OSError, match="disk is full"):
        write_changes(FailingDisk(step, OSError("disk is full"), after=after), changes)
    assert content(tmp_path) == BEFORE


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("after", [False, True])
def test_edit_that_was_cut_off_is_finished_by_the_next_start(tmp_path: Path, step: int, after: bool) -> None:
    changes = prepare(tmp_path)
    with pytest.raises(Killed):
        write_changes(FailingDisk(step, Killed(), after=after), changes)
    snapshot = read_source(tmp_path)
    assert snapshot is not None
    assert all(found in (BEFORE.get(name), AFTER.get(name)) for name, found in snapshot.files.items())
    assert finish_write(Disk(), changes) == ()
    assert content(tmp_path) == AFTER
    assert finish_write(Disk(), changes) == (), "finishing twice changes nothing"


def test_file_that_somebody_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    changes = prepare(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"theirs")
    with pytest.raises(SourceChanged):
        write_changes(Disk(), changes)
    assert content(tmp_path) == {"a.yaml": b"a1", "b.yaml": b"theirs"}
    assert finish_write(Disk(), changes) == (str(tmp_path / "b.yaml"),)
    assert content(tmp_path) == {"a.yaml": b"a2", "b.yaml": b"theirs", "c.yaml": b"c2"}


def test_new_file_never_replaces_one_that_appeared(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"theirs")
    with pytest.raises(SourceChanged):
        write_changes(Disk(), (FileChange(str(tmp_path / "c.yaml"), None, b"ours"),))
    assert content(tmp_path) == {"c.yaml": b"theirs"}


def test_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"1")
    path.chmod(0o640)
    write_changes(Disk(), (FileChange(str(path), b"1", b"2"),))
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_folder_of_a_new_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.yaml"
    write_changes(Disk(), (FileChange(str(path), None, b"1"),))
    assert path.read_bytes() == b"1"
