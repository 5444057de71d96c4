import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from covey_fleet_client.files import ABANDONED_SECONDS, ensure_private_folder, write_private


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


def test_what_a_killed_writer_left_goes_when_the_folder_is_used_again(tmp_path: Path) -> None:
    folder, code = tmp_path / "agent", "import os, sys; from pathlib import Path\n"
    ensure_private_folder(folder)
    # The writer dies where it hurts: the bytes are on the disk, the name isn't taken yet.
    code += "from covey_fleet_client import files\nfiles.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
    code += "files.write_private(Path(sys.argv[1]) / 'assignments.json', 'secret')"
    ended = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    ensure_private_folder(folder)
    assert left.exists(), "a writer that lives may have it"
    long_ago = time.time() - ABANDONED_SECONDS - 1
    os.utime(left, (long_ago, long_ago))
    ensure_private_folder(folder)
    assert not list(folder.iterdir())


def test_nothing_else_is_taken_for_a_killed_writers(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    ensure_private_folder(folder)
    kept = (".notes.tmp", ".a.0123456789abcdef.tmp.bak", "a.0123456789abcdef.tmp", ".a.0123456789ABCDEF.tmp")
    for name in kept:
        (folder / name).write_text("somebody's")
    (folder / ".folder.0123456789abcdef.tmp").mkdir()
    (folder / ".link.0123456789abcdef.tmp").symlink_to(folder / kept[0])
    for path in folder.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    ensure_private_folder(folder)
    assert len(list(folder.iterdir())) == len(kept) + 2
