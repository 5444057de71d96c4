"""A double of an engine: speaks as much of llama-server's HTTP as the agent needs, and misbehaves on demand.

Takes llama-server's flags and honours `--port`, `--api-key-file`, `--version`, `--help` and `--list-devices`. Knobs
come by environment, since the argv is the adapter's:

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

KNOBS = {name.removeprefix("DOUBLE_"): value for name, value in os.environ.items() if name.startswith("DOUBLE_")}


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    key = ""
    generated = itertools.count()

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)

    def answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
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
        elif "WEDGE_AFTER" in KNOBS and next(self.generated) >= int(KNOBS["WEDGE_AFTER"]):
            time.sleep(3600)
        elif request.get("stream"):
            compute(float(KNOBS.get("PREFILL", "0")))
            self.stream()
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            self.answer(200, {"choices": [{"message": {"content": "a"}}], "usage": usage, "pid": os.getpid()})

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
    if count := int(KNOBS.get("PRINT_BYTES", "0")):
        line = b"x" * 1023 + b"\n"
        for _ in range(count // len(line)):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
    if dies_at_load():
        print(KNOBS["DIE_AT_LOAD"], flush=True)
        sys.exit(int(KNOBS.get("EXIT_CODE", "1")))
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


if __name__ == "__main__":
    main()
