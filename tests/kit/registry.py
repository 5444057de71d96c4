"""A real registry (Distribution, as Debian packages it) on loopback, and a door before it that wants tokens.

The program is unpacked into the tests' cache and installed nowhere; where there is no `apt-get` its tests are left out.
"""

import base64
import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from kit.cache import shared_cache
from kit.fleet import free_port, wait_until

USER, PASSWORD = "covey", "secretsecret"
_HASH = "$2b$04$b17qWxo7y7Fvq.5hXB.Ifu9FiHEA6qK63A5qRiIDoqRrxzd0n3Sfm"
LOGIN = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# What `oras push` calls a file that it is told no type of.
ORAS_FILE = "application/vnd.oci.image.layer.v1.tar"
TITLE = "org.opencontainers.image.title"


def provide_registry() -> Path:
    folder = shared_cache() / "registry"
    program = folder / "usr" / "bin" / "docker-registry"
    if program.is_file():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("a real registry comes from Debian: no `apt-get` here")
    with tempfile.TemporaryDirectory(dir=shared_cache()) as temporary:
        got = subprocess.run(
            ["apt-get", "download", "docker-registry"], cwd=temporary, capture_output=True, text=True, check=False
        )
        found = list(Path(temporary).glob("*.deb"))
        if not found:
            pytest.skip(f"Debian's docker-registry can't be fetched: {got.stderr[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(found[0]), f"{temporary}/out"], check=True)
        with contextlib.suppress(OSError):  # another worker was first
            Path(temporary, "out").rename(folder)
    return program


@dataclass(frozen=True, slots=True)
class Registry:
    """`host` is what a source names."""

    host: str

    def push(self, repository: str, tag: str, layers: list[tuple[bytes, dict[str, object]]]) -> str:
        """Put a manifest with these layers there, as ORAS does. Its digest."""
        with httpx.Client(base_url=f"http://{self.host}", headers={"Authorization": LOGIN}, timeout=60) as client:
            described = [
                {"mediaType": ORAS_FILE} | more | self._put(client, repository, content) for content, more in layers
            ]
            config = {"mediaType": "application/vnd.oci.empty.v1+json"} | self._put(client, repository, b"{}")
            manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described}
            text = json.dumps(manifest).encode()
            put = client.put(f"/v2/{repository}/manifests/{tag}", content=text, headers={"Content-Type": MANIFEST})
            put.raise_for_status()
            return hashlib.sha256(text).hexdigest()

    def _put(self, client: httpx.Client, repository: str, content: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        begun = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
        where = httpx.URL(begun.headers["location"]).copy_merge_params({"digest": digest})
        client.put(where, content=content, headers={"Content-Type": "application/octet-stream"}).raise_for_status()
        return {"digest": digest, "size": len(content)}


def title(name: str) -> dict[str, object]:
    return {"annotations": {TITLE: name}}


@contextlib.contextmanager
def running_registry(folder: Path) -> Generator[Registry]:
    """Whoever asks must log in."""
    program, port = provide_registry(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "for tests"},
        "auth": {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}},
    }
    # YAML takes JSON.
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log)

    def answers() -> bool:
        assert process.poll() is None, (folder / "registry.log").read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/v2/").status_code == 401
        return False

    try:
        wait_until(answers, "the registry answers", 60)
        yield Registry(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


@dataclass(slots=True)
class DoorState:
    behind: str
    realm: str = ""
    token_uses: int = 1_000_000
    """After so many calls a token has run out."""
    uses_left: int = 0
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    logins: list[str] = field(default_factory=list[str])
    """`Authorization` of each who asked for a token; empty for nobody."""
    shown: set[str] = field(default_factory=set[str])
    """Schemes by which anybody asked for content."""


class TokenDoor:
    """What a registry of the world does: no token, no content; a token for whoever has a login."""

    def __init__(self, behind: Registry) -> None:
        self.state = DoorState(f"http://{behind.host}")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_DoorHandler,), {"state": self.state}))
        self.registry = Registry(f"127.0.0.1:{self._server.server_port}")
        self.state.realm = f"http://{self.registry.host}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def running_door(behind: Registry) -> Generator[TokenDoor]:
    door = TokenDoor(behind)
    try:
        yield door
    finally:
        door.close()


class _DoorHandler(BaseHTTPRequestHandler):
    state: ClassVar[DoorState]
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        said = self.headers.get("Authorization", "")
        if self.path.startswith("/token?"):
            self.state.logins.append(said)
            is_known = said == LOGIN and "scope=repository%3A" in self.path and "service=tests" in self.path
            with self.state.lock:
                self.state.tokens += is_known
                self.state.uses_left = self.state.token_uses
                made = json.dumps({"token": f"one.time.{self.state.tokens}"}).encode()
            self._answer(200 if is_known else 401, made if is_known else b"{}")
        elif self.path.startswith("/away?to="):
            self._answer(302, b"", Location=self.path.removeprefix("/away?to=").replace("&", "?", 1))
        elif not self._is_let_in(said):
            wants = f'Bearer realm="{self.state.realm}",service="tests",scope="repository:x:pull"'
            self._answer(401, b"{}", **{"WWW-Authenticate": wants})
        else:
            self._pass_on()

    def _is_let_in(self, said: str) -> bool:
        with self.state.lock:
            self.state.shown.add(said.partition(" ")[0])
            self.state.uses_left -= (is_good := said == f"Bearer one.time.{self.state.tokens}")
            return is_good and self.state.uses_left >= 0

    def _pass_on(self) -> None:
        heads = {name: self.headers[name] for name in ("Range", "Accept", "If-Range") if name in self.headers}
        found = httpx.get(f"{self.state.behind}{self.path}", headers=heads | {"Authorization": LOGIN}, timeout=60)
        kept = {
            name: found.headers[name] for name in ("Content-Range", "ETag", "Content-Type") if name in found.headers
        }
        self._answer(found.status_code, found.content, **kept)

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
