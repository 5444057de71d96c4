"""Real git repositories for tests, and a real HTTPS server for them: `git http-backend` behind Python's own server."""

import base64
import contextlib
import datetime
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# Of whoever runs the tests, nothing: no configuration, no identity, no prompt.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_"))} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def git(folder: Path, *arguments: str, given: str | None = None, **variables: str) -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=ENVIRONMENT | variables,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


class Repository:
    """A bare repository that is served, and somebody's clone of it, from which everything is pushed."""

    def __init__(self, folder: Path) -> None:
        self.bare = folder / "fleet.git"
        self.work = folder / "work"
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))
        # As the large hosts are: one commit by name, parts of a commit.
        for setting in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant", "http.receivepack"):
            git(self.bare, "config", setting, "true")
        git(folder, "init", "--quiet", "--initial-branch=main", str(self.work))
        git(self.work, "remote", "add", "origin", str(self.bare))

    @property
    def url(self) -> str:
        return f"git+file://{self.bare}"

    def commit(self, files: dict[str, str | bytes | None], message: str = "Change", **variables: str) -> str:
        """Commit files (None: removed) in the clone."""
        for path, content in files.items():
            target = self.work / path
            if content is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        git(self.work, "add", "--all")
        git(self.work, "commit", "--quiet", "--allow-empty", "-m", message, **variables)
        return git(self.work, "rev-parse", "HEAD")

    def push(self, files: dict[str, str | bytes | None], message: str = "Change", **variables: str) -> str:
        """Commit files and push them; the commit's first 12 hex."""
        commit = self.commit(files, message, **variables)
        self.send()
        return commit[:12]

    def send(self, *flags: str, branch: str = "main") -> None:
        git(self.work, "push", "--quiet", *flags, "origin", f"HEAD:refs/heads/{branch}")

    def pull(self) -> None:
        git(self.work, "pull", "--quiet", "--ff-only", "origin", "main")


@dataclass(slots=True)
class Knobs:
    """What a server does besides serving."""

    login: tuple[str, str] | None = None
    """User and password that it asks for."""
    silent: bool = False
    """It takes a request and answers nothing until this is False again."""
    failing: bool = False
    """It answers 503."""
    complaint: str = ""
    """What it says in git's own protocol instead of an answer."""
    requests: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class GitServer:
    port: int
    authority: Path
    """Certificate that a client must trust."""
    knobs: Knobs

    def url(self, path: str = "") -> str:
        return f"git+https://127.0.0.1:{self.port}/fleet.git{path}"

    @property
    def environment(self) -> dict[str, str]:
        """For a client: trusts this server and nothing of the user's."""
        return ENVIRONMENT | {"GIT_SSL_CAINFO": str(self.authority)}


@contextlib.contextmanager
def git_server(folder: Path, port: int = 0) -> Generator[GitServer]:
    """Serves the bare repositories in a folder."""
    knobs = Knobs()
    certificate, key = _make_certificate(folder)
    server = ThreadingHTTPServer(("127.0.0.1", port), _make_backend(folder, knobs))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield GitServer(server.server_address[1], certificate, knobs)
    finally:
        knobs.silent = False
        server.shutdown()
        server.server_close()
        thread.join()


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "server.pem", folder / "server.key"
    if certificate.exists():
        return certificate, key
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "git server of a test")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate, key


def _render_line(text: str) -> bytes:
    return f"{len(text) + 4:04x}{text}".encode()


def _make_backend(folder: Path, knobs: Knobs) -> type[BaseHTTPRequestHandler]:
    class Backend(BaseHTTPRequestHandler):
        """CGI for `git http-backend`."""

        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: pytest has enough to print."""

        def _serve(self) -> None:
            body = self._read_body()
            knobs.requests.append(self.path)
            while knobs.silent:
                time.sleep(0.05)
            if knobs.login is not None and not self._is_known(*knobs.login):
                self._answer(401, [("WWW-Authenticate", 'Basic realm="git"')], b"who are you?")
                return
            if knobs.failing:
                self._answer(503, [], b"later")
                return
            path, _, query = self.path.partition("?")
            if knobs.complaint:
                service = query.removeprefix("service=")
                words = _render_line(f"# service={service}\n") + b"0000" + _render_line(f"ERR {knobs.complaint}")
                self._answer(200, [("Content-Type", f"application/x-{service}-advertisement")], words)
                return
            variables = ENVIRONMENT | {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("content-type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
                "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
                "REMOTE_USER": knobs.login[0] if knobs.login else "",
                "REMOTE_ADDR": "127.0.0.1",
            }
            done = subprocess.run(["git", "http-backend"], input=body, env=variables, capture_output=True, check=False)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            status, heads = 200, list[tuple[str, str]]()
            for line in head.decode().splitlines():
                name, _, value = line.partition(": ")
                if name == "Status":
                    status = int(value.split(" ")[0])
                else:
                    heads.append((name, value))
            self._answer(status, heads, content)

        def _is_known(self, user: str, password: str) -> bool:
            wanted = base64.b64encode(f"{user}:{password}".encode()).decode()
            return self.headers.get("authorization") == f"Basic {wanted}"

        def _read_body(self) -> bytes:
            if self.headers.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("content-length", "0")))

        def _answer(self, status: int, heads: list[tuple[str, str]], content: bytes) -> None:
            with contextlib.suppress(OSError):  # a client that gave up
                self.send_response(status)
                for name, value in heads:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    return Backend
