"""An engine that is a rank, as a process: it listens for the one before it, dials the next one once, as mlx does, and
then passes on what it hears. When either is gone it ends with a status of its own, and by SIGUSR1 with that of one that
waited in vain.

    python ring_engine.py --port P --ring R --next N --heard FILE [--late SECONDS]

Gateways are answered at `--port` with what they send. `--heard` is where it writes down what the one before said.
"""

import argparse
import os
import signal
import socket
import threading
import time
from pathlib import Path

LOST = 76
STUCK = 77


def echo(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(peer.recv(4096))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--ring", "--next"):
        parser.add_argument(name, type=int)
    parser.add_argument("--heard", type=Path)
    parser.add_argument("--late", type=float, default=0.0)
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, lambda _number, _frame: os._exit(STUCK))
    time.sleep(options.late)
    threading.Thread(target=echo, args=(options.port,), daemon=True).start()
    server = socket.create_server(("127.0.0.1", options.ring))
    after = socket.create_connection(("127.0.0.1", options.next))
    after.sendall(f"from {options.heard.stem}\n".encode())
    before, _ = server.accept()

    def watch() -> None:
        try:
            after.recv(1)
        finally:
            os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()
    heard = b""
    try:
        while piece := before.recv(4096):
            heard += piece
            options.heard.write_bytes(heard)
    finally:
        os._exit(LOST)


if __name__ == "__main__":
    main()
