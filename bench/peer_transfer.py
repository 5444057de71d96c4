"""A blob from node to node over TLS on loopback, beside `curl` from nginx with the same cipher. One JSON line a figure.

And a model of 100 MB that three nodes begin to fetch at once, by the leader's own rule of whose turn it is: how often
it leaves its origin.

Both write the file to the same folder. `plain` leaves the digest out; `whole` is what an agent does. Each is run in
turn, several times over, and the median counts: others may share the machine. CPU is what the kernel counted for both
ends.

Usage: `peer_transfer.py [MIB [ROUNDS]]`. nginx and curl from PATH; the folder is TMPDIR's.
"""

import asyncio
import hashlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.given import GivenBlobs
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.pace import Pace
from covey_agent.artifacts.partial import PartialFile
from covey_agent.artifacts.web import SERVER, Patience, Web
from covey_agent.peers.serving import BlobServer
from covey_agent.peers.sources import Peers
from covey_api.messages import Holder, Report, Wanted, WantedAnswer
from covey_controller.ports import AgentSession
from covey_controller.sharing import Sharing
from covey_fleet_client.dialling import DialContext
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MIB, ROUNDS = 1024, 5
FLEET_BYTES = 100_000_000
CIPHER = "TLS_AES_256_GCM_SHA384"


def say(name: str, **figures: float) -> None:
    print(json.dumps({"measure": name, **{key: round(value, 3) for key, value in figures.items()}}), flush=True)


def make_identity(folder: Path, name: str) -> None:
    """Its own authority."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"covey://agent/{name}")])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, content in (("certificate.pem", certificate), ("key.pem", private), ("authorities.pem", certificate)):
        (folder / file).write_bytes(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_nginx(folder: Path, blobs: Path, identity: Path) -> Generator[tuple[int, psutil.Process]]:
    port = free_port()
    config = f"""worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log; user root;
        events {{ worker_connections 64; }}
        http {{ access_log off; sendfile on; client_body_temp_path {folder}; proxy_temp_path {folder};
          fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
          server {{ listen 127.0.0.1:{port} ssl; root {blobs}; ssl_protocols TLSv1.3; ssl_buffer_size 16k;
            ssl_certificate {identity}/certificate.pem; ssl_certificate_key {identity}/key.pem;
            ssl_client_certificate {identity}/authorities.pem; ssl_verify_client on; }} }}"""
    (folder / "nginx.conf").write_text(config)
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        wait_for(port)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


@contextmanager
def run_server(cache: Path, identity: Path) -> Generator[tuple[int, psutil.Process]]:
    command = [sys.executable, __file__, "serve", str(cache), str(identity)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def serve(cache: Path, identity: Path) -> None:
    server = BlobServer(GivenBlobs(Cache(cache)), identity)
    server.listen("127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.Event().wait()


def cpu_of(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


class Undigested(PartialFile):
    """Believes what it is given."""

    def __init__(self, descriptor: int, path: Path, sha256: str) -> None:
        super().__init__(descriptor, path)
        self._descriptor_of_it = descriptor
        self._sha256 = sha256

    def append(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            count = os.pwrite(self._descriptor_of_it, view, self.done_bytes)
            self.done_bytes += count
            view = view[count:]

    def digest(self) -> str:
        return self._sha256


@dataclass(frozen=True, slots=True)
class OneHolder:
    holder: Holder

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        return WantedAnswer(holders=(self.holder,))


async def take(folder: Path, identity: Path, port: int, sha256: str, size_bytes: int, *, is_plain: bool) -> None:
    directory = OneHolder(Holder(node="a", address="127.0.0.1", port=port))
    peers = Peers(directory, DialContext(identity).observe, Pace(), 60.0, lambda: 0.5)
    path = folder / "taken"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    partial = Undigested(descriptor, path, sha256) if is_plain else PartialFile(descriptor, path)
    try:
        await peers.fill("blob", sha256, size_bytes, partial, lambda _: None)
        assert partial.done_bytes == size_bytes
    finally:
        peers.close()
        os.close(descriptor)
        path.unlink()


def curl(folder: Path, identity: Path, port: int, sha256: str) -> None:
    path = folder / "curled"
    command = ["curl", "-sSf", "--insecure", "--tls13-ciphers", CIPHER, "--tlsv1.3", "-o", str(path)]
    command += ["--cert", str(identity / "certificate.pem"), "--key", str(identity / "key.pem")]
    subprocess.run([*command, f"https://127.0.0.1:{port}/{sha256}"], check=True)
    path.unlink()


def measure(work: Callable[[], None], server: psutil.Process, size_bytes: int) -> tuple[float, float]:
    """MB/s, and CPU seconds per GB of both ends."""

    def cpu() -> float:
        own = os.times()
        return own.user + own.system + own.children_user + own.children_system + cpu_of(server)

    began, before = time.perf_counter(), cpu()
    work()
    return size_bytes / (time.perf_counter() - began) / 1e6, (cpu() - before) / (size_bytes / 1e9)


class Origin(BaseHTTPRequestHandler):
    """Sends the file in pieces, and counts them."""

    path_of_file = Path()
    sent_bytes = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size_bytes = self.path_of_file.stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", str(size_bytes))
        self.end_headers()
        with self.path_of_file.open("rb") as file:
            while piece := file.read(2**20):
                self.wfile.write(piece)
                Origin.sent_bytes += len(piece)

    def log_message(self, format: str, *args: object) -> None: ...


class Leader:
    """What the leader knows of three nodes of one machine, as far as blobs go."""

    def __init__(self) -> None:
        self.sharing = Sharing(time.monotonic)
        self.agents: dict[str, AgentSession] = {}
        self.nodes: dict[str, tuple[Cache, BlobServer]] = {}

    def observe(self) -> None:
        for name, (cache, server) in self.nodes.items():
            report = Report(
                boot_id=name,
                sequence=1,
                version="0",
                full=True,
                machine="here",
                blobs=cache.digests(),
                blobs_port=server.port,
            )
            self.agents[name] = AgentSession(name, last_seen=time.monotonic(), report=report)


@dataclass(frozen=True, slots=True)
class Asking:
    """A node's way to the leader."""

    node: str
    leader: Leader

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        self.leader.observe()
        return self.leader.sharing.answer(self.node, wanted, self.leader.agents)


async def fetch_together(folder: Path, url: str, sha256: str, size_bytes: int) -> float:
    """Seconds until all three have it."""
    leader, names = Leader(), ("a", "b", "c")
    for name in names:
        make_identity(folder / name, name)
    together = b"".join((folder / name / "certificate.pem").read_bytes() for name in names)
    async with AsyncExitStack() as stack:
        downloaders: list[Downloader] = []
        for name in names:
            identity = folder / name
            (identity / "authorities.pem").write_bytes(together)
            cache, web = Cache(folder / f"cache-{name}"), Web(IndexSettings(url=url), Patience())
            stack.push_async_callback(web.close)
            server = BlobServer(GivenBlobs(cache), identity)
            server.listen("127.0.0.1", 0)
            stack.callback(server.close)
            jitter = random.Random(name).random
            peers = Peers(Asking(name, leader), DialContext(identity).observe, web.pace, 60.0, jitter)
            stack.callback(peers.close)
            leader.nodes[name] = (cache, server)
            downloaders.append(Downloader(web, cache, peers))
        began = time.perf_counter()
        remote = Remote(url, "weights.gguf", sha256, size_bytes, SERVER)
        await asyncio.gather(*(each.download(remote, lambda _: None) for each in downloaders))
        return time.perf_counter() - began


def measure_fleet() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = os.urandom(FLEET_BYTES)
        Origin.path_of_file = folder / "weights.gguf"
        Origin.path_of_file.write_bytes(content)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/weights.gguf"
        seconds = asyncio.run(fetch_together(folder, url, hashlib.sha256(content).hexdigest(), FLEET_BYTES))
        server.shutdown()
        say("fleet", nodes=3, times_from_origin=Origin.sent_bytes / FLEET_BYTES, seconds=seconds)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2]), Path(sys.argv[3])))
        return
    measure_fleet()
    given = [int(word) for word in sys.argv[1:]]
    size_mib, rounds = (*given, *(MIB, ROUNDS)[len(given) :])
    if not (shutil.which("nginx") and shutil.which("curl")):
        print("nginx and curl are needed, and aren't there: nothing is measured")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identity = folder / "identity"
        make_identity(identity, "a")
        cache = Cache(folder / "cache")
        content = os.urandom(size_mib * 2**20)
        sha256 = hashlib.sha256(content).hexdigest()
        cache.add_blob(sha256, content)
        size_bytes = len(content)
        del content
        figures: dict[str, list[tuple[float, float]]] = {"curl": [], "plain": [], "whole": []}
        with (
            run_nginx(folder, cache.blobs, identity) as (nginx_port, nginx),
            run_server(folder / "cache", identity) as (port, server),
        ):
            for _ in range(rounds):
                figures["curl"].append(measure(lambda: curl(folder, identity, nginx_port, sha256), nginx, size_bytes))
                for kind in ("plain", "whole"):
                    work = take(folder, identity, port, sha256, size_bytes, is_plain=kind == "plain")
                    figures[kind].append(measure(lambda work=work: asyncio.run(work), server, size_bytes))
        curl_rate = statistics.median(rate for rate, _ in figures["curl"])
        for kind, found in figures.items():
            rate = statistics.median(each for each, _ in found)
            cpu = statistics.median(each for _, each in found)
            say(kind, mb_per_second=rate, of_curl=rate / curl_rate, cpu_seconds_per_gb=cpu)


if __name__ == "__main__":
    main()
