"""The control API on its Unix socket: for this machine's user alone.

The socket is made under a mask that leaves others nothing, so there is no moment in which somebody else could connect.
One that nobody listens on (what a killed controller leaves) is replaced; one that answers is another controller's.
"""

import asyncio
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from covey_fleet_client.files import ensure_private_folder

from covey_controller.control_api.app import build_control_app
from covey_controller.denials import Denials
from covey_controller.ports import Asker, Explainer, Source
from covey_controller.serving.listener import ListenFailed, serve
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust

# What the kernel takes as a socket's path, without the byte that ends it.
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103
# A live controller accepts at once; a backlog that stays full for this long is a live one too.
_PROBE_SECONDS = 1.0
_OTHERS_MASK = 0o177


async def serve_control(
    path: Path,
    explainer: Explainer,
    asker: Asker,
    source: Source,
    tokens: Tokens,
    trust: Trust,
    denials: Denials,
    *,
    is_ready: Callable[[], bool],
    on_listening: Callable[[], None],
) -> None:
    """Until cancelled, then done within two seconds and the socket gone. ListenFailed says why it can't listen."""
    bound = _bind(path)
    made = os.lstat(path)
    closing = asyncio.Event()
    try:
        app = build_control_app(explainer, asker, source, tokens, trust, denials, is_ready, closing)
        await serve(app, bound, closing=closing, on_listening=on_listening)
    finally:
        bound.close()
        _remove(path, made)


def _bind(path: Path) -> socket.socket:
    if (length := len(os.fsencode(path))) > MAX_PATH_BYTES:
        raise ListenFailed(
            f"the path of the control socket must be at most {MAX_PATH_BYTES} bytes long; '{path}' has {length}. "
            "Choose a shorter folder with `--state DIR`."
        )
    ensure_private_folder(path.parent)
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_OTHERS_MASK)
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise ListenFailed(f"the control socket '{path}' can't be made: {error.strerror}") from None
    finally:
        os.umask(before)
    return bound


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise ListenFailed(f"'{path}' must be the control socket or nothing; it is another file. Move it away.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ListenFailed(f"another controller listens on '{path}'. Stop it, or choose another folder with `--state DIR`.")


def _remove(path: Path, made: os.stat_result) -> None:
    """Only the socket that was made here: a successor may have put its own in its place."""
    try:
        if os.path.samestat(path.lstat(), made):
            path.unlink()
    except FileNotFoundError:
        pass
