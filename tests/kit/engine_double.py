"""A double of an engine: speaks as much of llama-server's HTTP as the agent needs, and misbehaves on demand.

Takes llama-server's flags and honours `-m`, `--port`, `--api-key-file`, `--version`, `--help` and `--list-devices`.
What it is given as its model must begin as a GGUF file does. Knobs come by environment, since the argv is the
adapter's, and for one model alone from the file `MODEL.knobs` beside it (JSON, names in lower case without `DOUBLE_`):

    DOUBLE_SLOW_START    seconds before it listens
    DOUBLE_HANG_HEALTH   any value: accepts requests and never answers
    DOUBLE_IGNORE_TERM   any value: SIGTERM changes nothing
    DOUBLE_EXIT_AFTER    seconds after the start at which it exits
    DOUBLE_EXIT_CODE     the code of that exit, and of a death at load (default 1)
    DOUBLE_DIE_AT_LOAD   words that it prints before it exits without ever listening
    DOUBLE_DEATHS        how many starts die at load (default all); counted in the file DOUBLE_COUNTER
    DOUBLE_COUNTER       a file that gets one byte a start
    DOUBLE_PRINT_BYTES   bytes printed at the start
    DOUBLE_ALLOCATE_MIB  memory that it holds
    DOUBLE_BREAK_STREAM  chunks of a stream after which it resets the connection
    DOUBLE_WEDGE_AFTER   requests that generate; with the next one generation hangs for ever, and /health still answers
    DOUBLE_PREFILL       seconds that it computes, at full load, before the first byte of a stream
    DOUBLE_FORK          any value: leaves a child in its process group that ignores SIGTERM
    DOUBLE_DAEMON        a file that gets the ids of two processes in sessions of their own, one of them orphaned
    DOUBLE_LOAD          seconds over which it reads its model, before it listens
    DOUBLE_GARBAGE       any value: answers every request with 200 and bytes that mean nothing
    DOUBLE_DIE_AT        the request that generates, counted from 1, in whose midst it exits
    DOUBLE_CLOSE_AFTER   requests that generate; then it listens no more and lives on
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOAD_PIECES = 40


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


def read_knobs() -> dict[str, str]:
    knobs = {name.removeprefix("DOUBLE_"): value for name, value in os.environ.items() if name.startswith("DOUBLE_")}
    with contextlib.suppress(FileNotFoundError), open(f"{flag('-m')}.knobs") as file:
        knobs |= {name.upper(): value for name, value in json.load(file).items()}
    return knobs


KNOBS = read_knobs()


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def read_model() -> None:
    """As llama-server does: a piece after the other, and with its words where it is no model."""
    path, seconds = flag("-m"), float(KNOBS.get("LOAD", "0"))
    if not path:
        return
    with open(path, "rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            shown = magic.decode("ascii", "replace")
            print(f"0.00.004.685 E gguf_init_from_reader: invalid magic characters: '{shown}', expected 'GGUF'")
            print(f"0.00.004.690 E llama_model_load: error loading model: failed to load model from {path}", flush=True)
            sys.exit(1)
        for _ in range(LOAD_PIECES if seconds else 0):
            file.read(os.path.getsize(path) // LOAD_PIECES)
            time.sleep(seconds / LOAD_PIECES)


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    key = ""
    generated = itertools.count(1)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)

    def answer(self, status: int, document: object) -> None:
        body = b"\x00\xff{]" if "GARBAGE" in KNOBS else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.hang()
        self.answer(200, {"status": "ok"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.hang()
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.answer(401, {"error": {"message": "Invalid API Key"}})
            return
        number = next(self.generated)
        if "WEDGE_AFTER" in KNOBS and number > int(KNOBS["WEDGE_AFTER"]):
            time.sleep(3600)
        elif number == int(KNOBS.get("DIE_AT", "0")):
            os._exit(int(KNOBS.get("EXIT_CODE", "1")))
        elif request.get("stream"):
            compute(float(KNOBS.get("PREFILL", "0")))
            self.stream()
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            self.answer(200, {"choices": [{"message": {"content": "a"}}], "usage": usage, "pid": os.getpid()})
        if number == int(KNOBS.get("CLOSE_AFTER", "0")):
            self.close_connection = True
            self.server.shutdown()
            self.server.server_close()

    def hang(self) -> None:
        if "HANG_HEALTH" in KNOBS:
            time.sleep(3600)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        breaks_after = int(KNOBS.get("BREAK_STREAM", "0"))
        for number in range(1, 1_000):
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
            self.wfile.flush()
            if number == breaks_after:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            time.sleep(0.01)
        self.wfile.write(b"data: [DONE]\n\n")


def leave(path: str, *, is_orphan: bool) -> None:
    """A process that no signal to the group reaches; a step between of an orphan ends at once, as a daemon's does."""
    child = os.fork()
    if child and is_orphan:
        os.waitpid(child, 0)
    if child:
        return
    os.setsid()
    if is_orphan and os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(path, "ab") as file:
        file.write(f"{os.getpid()}\n".encode())
    time.sleep(3600)


def dies_at_load() -> bool:
    starts = 1
    if counter := KNOBS.get("COUNTER"):
        with open(counter, "ab") as file:
            file.write(b".")
            starts = file.tell()
    return "DIE_AT_LOAD" in KNOBS and starts <= int(KNOBS.get("DEATHS", "1000000"))


def main() -> None:
    if {"--version", "--help", "--list-devices"} & set(sys.argv):
        print("version: 1 (double)")
        return
    if "IGNORE_TERM" in KNOBS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "FORK" in KNOBS and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if path := KNOBS.get("DAEMON"):
        leave(path, is_orphan=True)
        leave(path, is_orphan=False)
    if count := int(KNOBS.get("PRINT_BYTES", "0")):
        line = b"x" * 1023 + b"\n"
        for _ in range(count // len(line)):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
    if dies_at_load():
        print(KNOBS["DIE_AT_LOAD"], flush=True)
        sys.exit(int(KNOBS.get("EXIT_CODE", "1")))
    read_model()
    held = bytearray(int(KNOBS.get("ALLOCATE_MIB", "0")) * 1024 * 1024)
    time.sleep(float(KNOBS.get("SLOW_START", "0")))
    if path := flag("--api-key-file"):
        with open(path) as file:
            Requests.key = file.read().strip()
    if after := float(KNOBS.get("EXIT_AFTER", "0")):
        threading.Timer(after, os._exit, (int(KNOBS.get("EXIT_CODE", "1")),)).start()
    try:
        server = ThreadingHTTPServer(("127.0.0.1", int(flag("--port"))), Requests)
    except OSError:
        print(f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {flag('--port')}", flush=True)
        sys.exit(1)
    print(f"listening, holding {len(held)} bytes", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
        time.sleep(3600)  # it listens no more


if __name__ == "__main__":
    main()
