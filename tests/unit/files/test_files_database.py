"""The store file: damage is moved aside, a newer one is refused, a refusing disk is said in words."""

import os
import resource
import sqlite3
from pathlib import Path

import pytest
from covey_controller.stores.files.database import (
    MAX_CORRUPT_FILES,
    SCHEMA_VERSION,
    StoreDamaged,
    StoreFault,
    move_aside,
    open_database,
)


def put(path: Path, value: str) -> None:
    database = open_database(path)
    with database.transaction(durable=True) as connection:
        connection.execute("INSERT OR REPLACE INTO facts VALUES ('x', ?)", (value,))
    database.close()


def get(path: Path) -> list[tuple[object, ...]]:
    database = open_database(path)
    rows = database.rows("SELECT value FROM facts")
    database.close()
    return rows


def test_file_is_only_the_owners_and_so_is_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "controller" / "store.sqlite"
    put(path, "1")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert get(path) == [("1",)]


def test_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    database = open_database(tmp_path / "store.sqlite")

    def fail() -> None:
        with database.transaction(durable=False) as connection:
            connection.execute("INSERT INTO facts VALUES ('x', '1')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert database.rows("SELECT value FROM facts") == []
    database.close()


@pytest.mark.parametrize("damage", ["garbage", "zeroed page", "other tables"])
def test_damaged_file_is_told_apart_from_a_refusing_disk(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.sqlite"
    put(path, "1" * 20_000)
    if damage == "garbage":
        path.write_bytes(b"no database at all" * 100)
    elif damage == "zeroed page":
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 4096)
    else:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE facts")
        connection.close()
    with pytest.raises(StoreDamaged):
        get(path)


def test_damaged_files_are_kept_under_numbered_names_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    for number in range(1, MAX_CORRUPT_FILES + 3):
        path.write_text(f"garbage {number}")
        path.with_name("store.sqlite-wal").write_text("log")
        move_aside(path)
        assert not path.exists()
        assert not path.with_name("store.sqlite-wal").exists()
    kept = sorted(found.name for found in tmp_path.glob("*.corrupt-?"))
    assert kept == [f"store.sqlite.corrupt-{number}" for number in range(1, MAX_CORRUPT_FILES + 1)]
    put(path, "new")


def test_newer_schema_is_refused_in_words_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreFault, match=r"was written by a newer Covey: its schema is 2, this one knows 1\."):
        open_database(path)
    assert path.exists()


def test_folder_that_is_a_file_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(StoreFault, match="must be writable"):
        open_database(tmp_path / "state" / "store.sqlite")


def test_full_disk_is_a_fault_and_what_was_stored_stays(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    put(path, "kept")
    database = open_database(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with (
            pytest.raises(StoreFault, match=r"can't be written: .*Free space"),
            database.transaction(durable=True) as connection,
        ):
            connection.execute("INSERT INTO facts VALUES ('y', ?)", ("y" * 200_000,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert database.rows("SELECT value FROM facts") == [("kept",)]
    with database.transaction(durable=True) as connection:
        connection.execute("INSERT INTO facts VALUES ('z', 'again')")
    database.close()


def test_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    database = open_database(path)
    assert database.is_in_place()
    os.rename(path, tmp_path / "elsewhere")
    assert not database.is_in_place()
    path.write_bytes(b"")
    assert not database.is_in_place()
    database.close()
