import os
import stat
from pathlib import Path

import pytest
from covey_fleet_client.files import ensure_private_folder, write_private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_0600_whatever_was_there_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_replaces_a_symlink_and_leaves_its_target_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    path = tmp_path / "key.pem"
    path.symlink_to(target)
    write_private(path, b"secret")
    assert target.read_text() == "precious"
    assert not path.is_symlink()


def test_a_write_that_fails_leaves_the_old_file_and_no_remains(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_private(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "name"
    write_private(path, b"old")
    with path.open("rb") as reader:
        write_private(path, b"new" * 1000)
        assert reader.read() == b"old"


def test_a_private_folder_is_made_with_its_parents_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    ensure_private_folder(path)
    assert mode_of(path) == 0o700
    path.chmod(0o755)
    ensure_private_folder(path)
    assert mode_of(path) == 0o700


def test_a_symlink_or_file_is_no_private_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="link"):
        ensure_private_folder(tmp_path / "link")
    with pytest.raises(OSError, match="file"):
        ensure_private_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_no_private_folder(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="user id"):
        ensure_private_folder(path)
