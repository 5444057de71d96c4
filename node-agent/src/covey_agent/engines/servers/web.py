"""HTTP of a server of ours: who may ask, what is refused before any work is done, how it is said.

Refusals have llama-server's shape, so that the gateway reads all engines alike. A thread a connection, as many as slots
and gateways can need and no more: an engine's bottleneck is never here.
"""

import hmac
import json
import select
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, cast

from covey_agent.engines.servers.settings import Settings

# The gateway takes 64 MiB of a client; what it adds is small.
MAX_BODY_BYTES = 80 * 1024 * 1024
# Between two bytes of a request, and of an answer that nobody takes.
STALL_SECONDS = 60.0
# As `engines.llama_server` has it: two gateways' requests and idle connections a slot, and probes.
CONNECTIONS_PER_SLOT = 4
SPARE_CONNECTIONS = 16
MAX_WORDS = 500
FAILURE = "covey-engine"
# Before the bytes of tensors that are loaded.
LOADED = f"{FAILURE}: loaded"

Body = dict[str, Any]


class Refused(Exception):
    """An answer that is no success: HTTP status, a type for machines, words, and more fields."""

    def __init__(self, status: int, kind: str, message: str, **fields: object) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": {"code": status, "type": kind, "message": message, **fields}}


def refuse_too_long(prompt_tokens: int, window: int) -> Refused:
    words = (
        f"request ({prompt_tokens} tokens) exceeds the available context size ({window} tokens): "
        "shorten it, or give the Placement a larger window"
    )
    return Refused(400, "exceed_context_size_error", words, n_prompt_tokens=prompt_tokens, n_ctx=window)


def refuse_both(prompt_tokens: int, wished: int, window: int) -> Refused:
    words = f"{prompt_tokens} tokens of the request and {wished} of `max_tokens` exceed the context size ({window})"
    counts = {"n_prompt_tokens": prompt_tokens, "n_ctx": window, "n_max_tokens": wished}
    return Refused(400, "exceed_context_size_error", words, **counts)


def invalid(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


class Core(Protocol):
    """What one engine does behind this."""

    def check_health(self) -> None:
        """Refused when no request can be answered."""
        ...

    def count_work(self) -> int:
        """Grows while anything is computed."""
        ...

    def count_asked(self) -> int | None:
        """Requests under way, those that wait too; None: who would tell may be dead."""
        ...

    def tokenize(self, text: str) -> list[int]: ...

    def count_prompt(self, body: Body) -> int:
        """Tokens of the prompt that a chat's messages become. Refused as it would be."""
        ...

    def answer_chat(self, handler: "EngineHandler", body: Body) -> None:
        """Answer it whole. Refused before a byte was written says why not."""
        ...


class EngineServer(ThreadingHTTPServer):
    """Bound at once, so that a taken port is known before weights are loaded; answers once it serves."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, settings: Settings, core: Core) -> None:
        self.settings = settings
        self.core = core
        self.key = settings.key_file.read_text(encoding="ascii").strip()
        self._permits = threading.BoundedSemaphore(CONNECTIONS_PER_SLOT * settings.slots + SPARE_CONNECTIONS)
        super().__init__(("127.0.0.1", settings.port), EngineHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._permits.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread began that would give it back
            self._permits.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._permits.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; of others the kind alone is said: their text may be a client's."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"a request failed: {type(error).__name__}", file=sys.stderr)


class EngineHandler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0: a connection each, so that none that idles holds a thread."""

    timeout = STALL_SECONDS
    server_version = "covey-engine"
    sys_version = ""

    @property
    def engine_server(self) -> EngineServer:
        return cast(EngineServer, self.server)

    @property
    def settings(self) -> Settings:
        return self.engine_server.settings

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a request's line is a client's words."""

    def do_GET(self) -> None:
        try:
            if self.path == "/health":
                self.engine_server.core.check_health()
                self.send_json(200, {"status": "ok"})
                return
            self._check_key()
            if self.path == "/metrics":
                work, asked = self.engine_server.core.count_work(), self.engine_server.core.count_asked()
                line = "" if asked is None else f"covey_engine_requests {asked}\n"
                self.send_text(f"covey_engine_work_total {work}\n{line}")
                return
            if self.path != "/v1/models":
                raise Refused(404, "not_found_error", "there is nothing at this path")
            self.send_json(200, {"object": "list", "data": [{"id": self.settings.name, "object": "model"}]})
        except Refused as refused:
            self.send_json(refused.status, refused.content)

    def do_POST(self) -> None:
        try:
            self._check_key()
            body = self._read_body()
            match self.path:
                case "/v1/chat/completions":
                    self._check_model(body)
                    self.engine_server.core.answer_chat(self, body)
                case "/v1/chat/completions/input_tokens":
                    self._check_model(body)
                    self.send_json(200, {"input_tokens": self.engine_server.core.count_prompt(body)})
                case "/tokenize":
                    self.send_json(200, {"tokens": self.engine_server.core.tokenize(_content_of(body))})
                case _:
                    raise Refused(404, "not_found_error", "there is nothing at this path")
        except Refused as refused:
            self.send_json(refused.status, refused.content)

    def _check_key(self) -> None:
        given = self.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self.engine_server.key.encode()):
            self.close_connection = True
            raise Refused(401, "authentication_error", "the key of this engine must be sent as bearer")

    def _read_body(self) -> Body:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise Refused(413, "invalid_request_error", f"a body must have a length of at most {MAX_BODY_BYTES} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise invalid("the body must be JSON") from None
        if not isinstance(body, dict):
            raise invalid("the body must be a JSON object")
        return cast(Body, body)

    def _check_model(self, body: Body) -> None:
        """One name, and nothing that chooses what is loaded."""
        asked = body.get("model", self.settings.name)
        if asked != self.settings.name:
            words = f"this engine serves '{self.settings.name}' alone; `model` must be it, or be left out"
            raise Refused(404, "model_not_found", words)
        for field in ("adapters", "adapter", "draft_model", "num_draft_tokens", "role_mapping", "lora"):
            if body.get(field) is not None:
                raise invalid(f"`{field}` is refused: what this engine loads is declared in the Model")

    def send_json(self, status: int, content: Mapping[str, object]) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def send_text(self, text: str) -> None:
        self._send(200, "text/plain; version=0.0.4", text.encode())

    def _send(self, status: int, content_type: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_events(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()

    def send_event(self, content: object) -> None:
        self.wfile.write(b"data: %b\n\n" % json.dumps(content).encode())
        self.wfile.flush()

    def end_events(self) -> None:
        self.wfile.write(b"data: [DONE]\n\n")
        self.wfile.flush()

    def is_client_gone(self) -> bool:
        """Whether the other side closed; nothing is read from it."""
        connection = cast(socket.socket, self.connection)
        if not select.select([connection], [], [], 0)[0]:
            return False
        try:
            return connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True


def text_messages(body: Body) -> list[Body]:
    """`messages`, each with a text; anything else is refused: an image's address would be fetched by the engine.

    OpenAI's newer name of the system's role is in few templates.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("`messages` must be a list with at least one message")
    for message in cast(list[object], messages):
        if not isinstance(message, dict) or not isinstance(cast(Body, message).get("role"), str):
            raise invalid("`messages[]` must be objects with a `role`")
        if cast(Body, message)["role"] == "developer":
            cast(Body, message)["role"] = "system"
        content = cast(Body, message).get("content")
        parts = cast(list[object], content) if isinstance(content, list) else []
        if content is not None and not isinstance(content, str | list):
            raise invalid("`messages[].content` must be a text or a list of parts")
        if any(not isinstance(part, dict) or cast(Body, part).get("type") != "text" for part in parts):
            raise invalid("`messages[].content` must be text: this engine takes no images or sound")
        if parts:
            texts = [str(cast(Body, part).get("text", "")) for part in parts]
            cast(Body, message)["content"] = "".join(texts)
    return cast(list[Body], messages)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read_object(body: Body, field: str) -> Body:
    """An object in the body, empty where there is none."""
    value: object = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"`{field}` must be an object")
    return cast(Body, value)


def choose_max_tokens(body: Body, prompt_tokens: int, window: int) -> int:
    """As many as are wished, else as are left of the window. Refused where those aren't left, or none is."""
    left = window - prompt_tokens
    if left < 1:
        raise refuse_too_long(prompt_tokens, window)
    wished = body.get("max_completion_tokens") or body.get("max_tokens")
    if wished is None:
        return left
    if not isinstance(wished, int) or isinstance(wished, bool) or wished < 1:
        raise invalid(f"`max_tokens` must be a positive integer; got {json.dumps(wished)[:40]}")
    if wished > left:
        raise refuse_both(prompt_tokens, wished, window)
    return wished


def _content_of(body: Body) -> str:
    content = body.get("content")
    if not isinstance(content, str):
        raise invalid("`content` must be a text")
    return content


def report_failure(error: BaseException) -> int:
    """Say in one line what ended this server, for its adapter; the exit status."""
    words = " ".join(str(error).split())[:MAX_WORDS]
    if isinstance(error, MemoryError) or "allocate" in words or "out of memory" in words.lower():
        cause = "OutOfMemory"
    elif isinstance(error, ImportError | Unfit):
        cause = "NoUsableEngine"
    elif isinstance(error, LoadFailed):
        cause = "ArtifactCorrupt"
    else:
        cause = "Exited"
    print(f"{FAILURE}: {cause}: {type(error).__name__}: {words}", file=sys.stderr, flush=True)
    return 1


class Unfit(Exception):
    """The weights are sound, and not for this engine."""


class LoadFailed(Exception):
    """The engine can't load the weights."""
