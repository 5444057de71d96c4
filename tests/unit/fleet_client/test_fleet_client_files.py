import os
import stat
from pathlib import Path

import pytest
from covey_controller import private_files as controller_files
from covey_fleet_client import files as client_files

# Both copies of this code hold to the same rules.
both = pytest.mark.parametrize("files", [client_files, controller_files], ids=["client", "controller"])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@both
def test_a_private_file_is_0600_whatever_was_there_and_nothing_is_left_beside_it(tmp_path: Path, files: object) -> None:
    path = tmp_path / "key.pem"
    path.write_text("old")
    path.chmod(0o644)
    write(files, path, b"new")
    assert path.read_bytes() == b"new"
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@both
def test_a_private_file_replaces_a_symlink_and_leaves_its_target_alone(tmp_path: Path, files: object) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    path = tmp_path / "key.pem"
    path.symlink_to(target)
    write(files, path, b"secret")
    assert target.read_text() == "precious"
    assert not path.is_symlink()


@both
def test_a_write_that_fails_leaves_the_old_file_and_no_remains(tmp_path: Path, files: object) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(OSError, match="taken"):
        write(files, path, b"new")
    assert list(tmp_path.iterdir()) == [path]


@both
def test_a_reader_sees_the_old_content_until_the_new_one_is_whole(tmp_path: Path, files: object) -> None:
    path = tmp_path / "name"
    write(files, path, b"old")
    with path.open("rb") as reader:
        write(files, path, b"new" * 1000)
        assert reader.read() == b"old"


@both
def test_a_private_folder_is_made_with_its_parents_and_closed_to_others(tmp_path: Path, files: object) -> None:
    path = tmp_path / "a" / "b"
    ensure(files, path)
    assert mode_of(path) == 0o700
    path.chmod(0o755)
    ensure(files, path)
    assert mode_of(path) == 0o700


@both
def test_a_symlink_or_file_is_no_private_folder(tmp_path: Path, files: object) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="link"):
        ensure(files, tmp_path / "link")
    with pytest.raises(OSError, match="file"):
        ensure(files, tmp_path / "file")


@both
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_no_private_folder(tmp_path: Path, files: object) -> None:
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="user id"):
        ensure(files, path)


def write(files: object, path: Path, content: bytes) -> None:
    if files is client_files:
        client_files.write_private(path, content)
    else:
        controller_files.write_private(path, content)


def ensure(files: object, path: Path) -> None:
    if files is client_files:
        client_files.ensure_private_folder(path)
    else:
        controller_files.ensure_private_folder(path)
