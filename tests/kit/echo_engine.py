"""An engine that speaks no HTTP: echoes bytes, at the end of them says how many there were, and writes down who came.

    echo_engine.py --port PORT --seen FILE

FILE gets one byte for each connection. What a connection's first line says changes what it does:

    deaf    reads nothing more, for ever
    flood   sends 64 MiB and reads nothing
    leave   answers `bye` and closes its side, reads on, and writes what it still read into FILE
"""

import socket
import sys
import threading


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def see(what: bytes) -> None:
    with open(flag("--seen"), "ab") as file:
        file.write(what)


def serve(peer: socket.socket) -> None:
    first = peer.recv(65536)
    if first == b"deaf\n":
        threading.Event().wait()
    elif first == b"flood\n":
        peer.sendall(bytes(64 * 1024 * 1024))
    elif first == b"leave\n":
        peer.sendall(b"bye")
        peer.shutdown(socket.SHUT_WR)
        while more := peer.recv(65536):
            see(more)
        see(b"!")
    else:
        echo(peer, first)
    peer.close()


def echo(peer: socket.socket, read: bytes) -> None:
    count = 0
    while read:
        count += len(read)
        peer.sendall(read)
        read = peer.recv(65536)
    peer.sendall(b"%d in all" % count)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(flag("--port"))))
    while True:
        peer, _ = listener.accept()
        see(b".")
        threading.Thread(target=serve, args=(peer,), daemon=True).start()


if __name__ == "__main__":
    main()
