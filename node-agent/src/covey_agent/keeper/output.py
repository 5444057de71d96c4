"""What a keeper writes for people: rings of two files. Writing never waits and never fails."""

import os

# Half of what output may take on disk: one file is written, the one before it is kept.
OUTPUT_FILE_BYTES = 1024 * 1024
# Last output kept in the exit record: enough for the error that an engine prints before it ends.
EXIT_TAIL_BYTES = 8 * 1024


def read_tail(folder: str, count: int) -> str:
    """The last `count` bytes of output, across the rotation; empty when there are none."""
    data = b""
    for name in ("output.log", "output.log.1"):
        missing = count - len(data)
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - missing))
                data = file.read(missing) + data
        except OSError:
            continue
    return data.decode(errors="replace")


def drop_cut_line(tail: str, count: int) -> str:
    """A tail of at most `count` bytes without the line in whose middle it begins: what must not be shown of a line
    can't be told by its end."""
    return tail.partition("\n")[2] if len(tail.encode()) >= count else tail


class Ring:
    """A log of two files, `name` and `name.1`, each of at most `file_bytes`, and the last bytes in memory."""

    def __init__(self, name: str, file_bytes: int) -> None:
        self.tail = bytearray()
        self._name = name
        self._file_bytes = file_bytes
        self._size = 0
        # What an earlier keeper of this member wrote stays readable for one more start.
        self._file = self._rotate()

    def _rotate(self) -> int:
        """A new file, or -1: what is written is then dropped, since an engine must never wait for a disk."""
        try:
            if os.path.exists(self._name):
                os.replace(self._name, f"{self._name}.1")
            return os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError:
            return -1

    def write(self, data: bytes) -> None:
        self.tail += data
        del self.tail[:-EXIT_TAIL_BYTES]
        if self._size + len(data) > self._file_bytes:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._size = self._rotate(), 0
        self._size += len(data)
        try:
            os.write(self._file, data)
        except OSError:
            return  # disk full or file gone: the tail in memory is what remains
