"""The SQLite file of one source: opening, repairing, transactions. It knows tables, not what the rows mean.

Durability: WAL. What somebody was told and may act on (a term, an Instance, a set in force) is committed with
`synchronous=FULL`: after a power cut the store never knows less than an agent was told. Status and events are committed
with `NORMAL`: the last of them may be lost then, and agents report them again.
Measured on a small virtual machine, one object per commit: NORMAL 0.02 ms, FULL 0.24 ms at the median and 8 ms at the
99th percentile; a slow disk takes 100 ms. Hence one thread of its own, not the event loop; the hop costs 0.05 ms.

A file that is damaged is moved aside and a new one begun: everything in it can be had again from source and agents.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    documented INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);
CREATE TABLE events (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    warning INTEGER NOT NULL, count INTEGER NOT NULL, first_seen TEXT NOT NULL, last_seen TEXT NOT NULL,
    sequence INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (kind, namespace, name, reason, message)
);
CREATE TABLE writes (path TEXT PRIMARY KEY, before BLOB, after BLOB);
"""
# A damaged file is kept for whoever wants to look; the ninth overwrites the eighth.
MAX_CORRUPT_FILES = 8
# Only a leader that was fenced off can hold the file, for one transaction.
BUSY_SECONDS = 5.0
# The log is cut back to this after a checkpoint.
MAX_LOG_BYTES = 4 << 20


class StoreFault(OSError):
    """The store can't be used now; nothing that runs is touched. The words say what to do."""


class StoreDamaged(Exception):
    """The file's content is no store, or broken. Moving it aside helps."""


class Database:
    """One open store file, used by one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._inode = os.stat(path).st_ino
        self._is_durable: bool | None = None
        """How the connection commits now; None: as it was opened."""

    def is_in_place(self) -> bool:
        """False when the file was removed or replaced: what is written then would be lost."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    @contextmanager
    def transaction(self, *, durable: bool) -> Generator[sqlite3.Connection]:
        """Commit all of it or nothing. StoreFault if the disk refuses."""
        try:
            if durable is not self._is_durable:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._is_durable = durable
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A failed COMMIT (full disk) has sometimes ended the transaction by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _fault(self.path, error) from error

    def rows(self, query: str, parameters: tuple[str, ...] = ()) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise _fault(self.path, error) from error

    def close(self) -> None:
        self._connection.close()


def open_database(path: Path) -> Database:
    """Open or create the store file. StoreDamaged if it is broken, StoreFault if it can't be used."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreFault(f"store '{path}' must be writable; got '{error.strerror}'") from error
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _prepare(path, connection)
    except sqlite3.Error as error:
        connection.close()
        raise _fault(path, error) from error
    except BaseException:
        connection.close()
        raise
    return Database(path, connection)


def move_aside(path: Path) -> Path:
    """Rename a damaged store, its log with it. Returns its new name."""
    names = [path.with_name(f"{path.name}.corrupt-{number}") for number in range(1, MAX_CORRUPT_FILES + 1)]
    aside = next((name for name in names if not name.exists()), names[-1])
    for ending in ("-wal", "-shm", ""):
        source = path.with_name(path.name + ending)
        if source.exists():
            os.replace(source, aside.with_name(aside.name + ending))
    return aside


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreFault(
            f"store '{path}' was written by a newer Covey: its schema is {version}, this one knows {SCHEMA_VERSION}. "
            "Run the newer version, or move the file away: it is rebuilt from the source and the agents."
        )
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise StoreDamaged(str(answer))
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StoreFault(f"store '{path}' must be on a local disk: its file system can't keep a write-ahead log")
    connection.execute(f"PRAGMA journal_size_limit={MAX_LOG_BYTES}")
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")


def _fault(path: Path, error: sqlite3.Error) -> Exception:
    """SQLite's error as ours: broken content, or a disk that refuses."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return StoreDamaged(str(error))
    return StoreFault(
        f"store '{path}' can't be written: {error}. Free space or restore access there; what runs goes on meanwhile."
    )
