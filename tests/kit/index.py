"""A package index on loopback with fault knobs: PEP 691 and 503 pages, wheels with ranges and validators.

It is a real HTTP server on a real socket; what it does wrong, it does as servers and proxies do.
"""

import base64
import contextlib
import hashlib
import html
import json
import socket
import struct
import threading
import zipfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import ClassVar


@dataclass(slots=True)
class Faults:
    """What goes wrong; counts go down to zero as it happens."""

    reset_after_bytes: int = 0
    """Bodies longer than this are cut off by a reset after it; `resets` times."""
    resets: int = 0
    stall_after_bytes: int = 0
    """Bodies longer than this fall silent after it, for `stall_seconds`; `stalls` times."""
    stalls: int = 0
    stall_seconds: float = 30.0
    trickle_bytes: int = 0
    """Above zero: bodies come in pieces of this many bytes, with `trickle_seconds` between."""
    trickle_seconds: float = 0.0
    busy: int = 0
    """This many requests for files are answered with `busy_status`."""
    busy_status: int = 429
    busy_from: int = 0
    """Above zero: after so many requests for a file, later ones are answered so too."""
    retry_after: str = ""
    most_open: int = 0
    """Above zero: so many bodies at a time; who comes then is answered with `busy_status`."""
    no_ranges: bool = False
    ignores_if_range: bool = False
    etag: str = '"one"'
    changes_after: int = 0
    """Above zero: so many more answers with content are of this file, later ones say that it is another."""
    no_hashes: bool = False
    no_sizes: bool = False
    wrong_hash: bool = False
    size_lie: int = 0
    """Added to the sizes on the page."""
    body: bytes | None = None
    """Sent for every file instead of its content."""
    html_only: bool = False
    page: tuple[str, str] | None = None
    """(content type, text) instead of every page."""
    redirect_to: str = ""
    """Requests for files are sent to this base URL."""
    login: tuple[str, str] | None = None
    """User and password that pages and files ask for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request."""

    path: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class IndexState:
    files: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    """Project → filename → content."""
    provenances: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Filename → its provenance (PEP 740); an empty one isn't there when it is asked for."""
    faults: Faults = field(default_factory=Faults)
    requests: list[Seen] = field(default_factory=list[Seen])
    sent_bytes: int = 0
    open_bodies: int = 0
    most_open_bodies: int = 0
    """At one time, so far."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)


class FileServer:
    """A server on loopback, in threads of its own, with what `handler` answers."""

    def __init__(self, handler: "type[FileHandler]") -> None:
        self.state = IndexState()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"state": self.state}))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def faults(self) -> Faults:
        return self.state.faults

    def requests_for(self, filename: str) -> list[Seen]:
        return [seen for seen in self.state.requests if seen.path.partition("?")[0].endswith(filename)]

    def close(self) -> None:
        self.state.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class PackageIndex(FileServer):
    """`url` is what `UV_INDEX_URL` would be."""

    def __init__(self) -> None:
        super().__init__(_IndexHandler)

    @property
    def url(self) -> str:
        return f"{self.base}/simple"

    def add(self, filename: str, content: bytes) -> str:
        """Publish a file; its project is the first part of its name. Returns its sha256."""
        project = filename.partition("-")[0].replace("_", "-").lower()
        self.state.files.setdefault(project, {})[filename] = content
        return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def running_index() -> Generator[PackageIndex]:
    index = PackageIndex()
    try:
        yield index
    finally:
        index.close()


def build_wheel(members: Mapping[str, bytes], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive with these members, in this order."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class FileHandler(BaseHTTPRequestHandler):
    """Sends content with ranges and validators, and with what is to go wrong."""

    state: ClassVar[IndexState]
    protocol_version = "HTTP/1.1"
    # Of one read: a client that keeps its connection open must not keep the server from closing.
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Silent: what was asked is in `requests`."""

    def send_content(self, content: bytes) -> None:
        faults = self.state.faults
        was_counted = faults.changes_after > 0
        start, end, status = 0, len(content), 200
        wanted = self.headers.get("Range", "")
        condition = self.headers.get("If-Range")
        is_same = condition is None or condition == faults.etag or faults.ignores_if_range
        if wanted.startswith("bytes=") and not faults.no_ranges and is_same:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            end = min(int(last) + 1, len(content)) if last else len(content)
            status = 206
            if start >= len(content):
                self.answer(416, "text/plain", b"", **{"Content-Range": f"bytes */{len(content)}"})
                return
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - start))
        if faults.etag:
            self.send_header("ETag", faults.etag)
        with self.state.counting:
            faults.changes_after -= faults.changes_after > 0
            if was_counted and not faults.changes_after:
                faults.etag = '"another"'
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        self._send_body(content[start:end])

    def _send_body(self, body: bytes) -> None:
        faults = self.state.faults
        if faults.resets and len(body) > faults.reset_after_bytes:
            faults.resets -= 1
            self._write(body[: faults.reset_after_bytes])
            self.wfile.flush()
            # Linger of zero: the peer sees a reset, not an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if faults.stalls and len(body) > faults.stall_after_bytes:
            faults.stalls -= 1
            self._write(body[: faults.stall_after_bytes])
            self.wfile.flush()
            self.state.closing.wait(faults.stall_seconds)
            self.close_connection = True
            return
        step = faults.trickle_bytes or len(body) or 1
        for at in range(0, len(body), step):
            self._write(body[at : at + step])
            if faults.trickle_bytes and self.state.closing.wait(faults.trickle_seconds):
                return

    def _write(self, piece: bytes) -> None:
        self.wfile.write(piece)
        self.state.sent_bytes += len(piece)

    def answer(self, status: int, content_type: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _IndexHandler(FileHandler):
    def do_GET(self) -> None:
        self.state.requests.append(Seen(self.path, dict(self.headers.items())))
        if not self._is_allowed():
            self.answer(401, "text/plain", b"who are you?")
            return
        parts = self.path.strip("/").split("/")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if parts[0] == "simple" and len(parts) == 2:
                self._send_page(parts[1])
            elif parts[0] == "files" and len(parts) == 3:
                self._send_file(parts[1], parts[2])
            elif parts[0] == "integrity" and self.state.provenances.get(parts[1]):
                self.answer(200, "application/vnd.pypi.integrity.v1+json", self.state.provenances[parts[1]])
            else:
                self.answer(404, "text/plain", b"no")

    def _is_allowed(self) -> bool:
        if self.state.faults.login is None:
            return True
        wanted = base64.b64encode(":".join(self.state.faults.login).encode()).decode()
        return self.headers.get("Authorization") == f"Basic {wanted}"

    def _send_page(self, project: str) -> None:
        faults = self.state.faults
        if faults.page is not None:
            self.answer(200, faults.page[0], faults.page[1].encode())
            return
        if (files := self.state.files.get(project)) is None:
            self.answer(404, "text/plain", b"no such project")
            return
        entries = [self._entry(project, filename, content) for filename, content in files.items()]
        if faults.html_only:
            links = "".join(
                f'<a href="{html.escape(str(entry["url"]))}{_fragment(entry)}">{entry["filename"]}</a><br>'
                for entry in entries
            )
            self.answer(200, "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode())
            return
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": entries}
        self.answer(200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode())

    def _entry(self, project: str, filename: str, content: bytes) -> dict[str, object]:
        faults = self.state.faults
        digest = "0" * 64 if faults.wrong_hash else hashlib.sha256(content).hexdigest()
        entry: dict[str, object] = {
            "filename": filename,
            # Relative, as many mirrors have it.
            "url": f"../../files/{project}/{filename}",
            "hashes": {} if faults.no_hashes else {"sha256": digest},
        }
        if filename in self.state.provenances:
            entry["provenance"] = f"/integrity/{filename}/provenance"
        if not faults.no_sizes:
            entry["size"] = len(content) + faults.size_lie
        return entry

    def _send_file(self, project: str, filename: str) -> None:
        faults = self.state.faults
        content = self.state.files.get(project, {}).get(filename)
        if content is None:
            self.answer(404, "text/plain", b"no such file")
        elif faults.redirect_to:
            self.answer(302, "text/plain", b"", Location=f"{faults.redirect_to}{self.path}")
        elif faults.busy_from and len(self.state.requests) > faults.busy_from:
            self.answer(faults.busy_status, "text/plain", b"busy")
        elif faults.busy > 0:
            faults.busy -= 1
            more = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            self.answer(faults.busy_status, "text/plain", b"busy", **more)
        elif not self._enter(faults.most_open):
            more = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            self.answer(faults.busy_status, "text/plain", b"one too many", **more)
        else:
            try:
                self.send_content(faults.body if faults.body is not None else content)
            finally:
                with self.state.counting:
                    self.state.open_bodies -= 1

    def _enter(self, most: int) -> bool:
        with self.state.counting:
            if most and self.state.open_bodies >= most:
                return False
            self.state.open_bodies += 1
            self.state.most_open_bodies = max(self.state.most_open_bodies, self.state.open_bodies)
            return True


def _fragment(entry: Mapping[str, object]) -> str:
    hashes = entry["hashes"]
    return f"#sha256={hashes['sha256']}" if isinstance(hashes, dict) and hashes else ""
