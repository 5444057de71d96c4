"""kopf as a watcher: each object that appears, changes or goes is handed on, and nothing else is asked of kopf.

No handler but `on.event`: so no finalizer, annotation, status, Event or peering object of kopf's is ever written, and
an object is not stored twice in its own annotations. Indexes and a limit of workers are left out together: a limit
below the number of indexed objects locks kopf up at its start, and our callback never waits, so nothing piles up.

It runs in a thread with a loop of its own. In the controller's loop it would take over SIGTERM, cancel every task that
began after it when it ends, and arm a timer that kills the process ten minutes after a cancellation; and a loop that is
busy here would be silence there. Scanning is off: kinds that are missing are the listing's to notice (`sync`).

The server ends each watch after some minutes, and a silent one is given up sooner; both are begun anew by kopf. Whether
anything still comes through is judged by `sync`, which ends a watch that has fallen behind.
"""

import asyncio
import base64
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import kopf
from covey_api.kinds import Kind
from covey_api.meta import GROUP, VERSION

from covey_controller.stores.kube.client import JsonObject
from covey_controller.stores.kube.credentials import Credentials, Login

log = logging.getLogger(__name__)

Deliver = Callable[[type[Kind], str | None, JsonObject], None]

# The API server ends the watch then, and kopf resumes it where it was: no connection outlives its credentials by much.
SERVER_TIMEOUT_SECONDS = 240
# For a server that doesn't: a little later, from this side.
CLIENT_TIMEOUT_SECONDS = SERVER_TIMEOUT_SECONDS + 30
# The API server sends a bookmark a minute.
INACTIVITY_SECONDS = 90.0
REQUEST_SECONDS = 60.0
CONNECT_SECONDS = 10.0
CHUNK_OBJECTS = 500
# kopf keeps a task an object for this long after its last event.
WORKER_IDLE_SECONDS = 1.0
STOP_SECONDS = 10.0


class KopfWatch:
    """One run of kopf in its thread."""

    def __init__(self, login: Login, kinds: Sequence[type[Kind]], deliver: Deliver) -> None:
        """`deliver` is called in the loop that `start` is called in, with the event's type: None while listing."""
        self._login = login
        self._kinds = kinds
        self._deliver = deliver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End it, and wait some seconds for its end."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def _run(self) -> None:
        # What goes wrong in there comes out as `error`, once. kopf's own lines come with every retry of every watch.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._registry(),
                    settings=watch_settings(),
                    standalone=True,
                    clusterwide=True,
                    identity=cast(
                        "Any", "covey-controller"
                    ),  # by itself it asks for a user name, which a pod may not have
                    stop_flag=self._stop,
                )
            )
        except BaseException as error:
            self.error = error
        finally:
            self._hand_over(self.ended.set)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, retries=1)
        def login(**_: object) -> kopf.ConnectionInfo:
            return connection_info(self._login.read())

        for kind in self._kinds:
            self._watch_kind(registry, kind)
        return registry

    def _watch_kind(self, registry: kopf.OperatorRegistry, kind: type[Kind]) -> None:
        @kopf.on.event(GROUP, VERSION, kind.PLURAL, registry=registry, id=kind.PLURAL)
        async def observe(event: kopf.RawEvent, **_: object) -> None:
            self._hand_over(self._deliver, kind, event["type"], dict(event["object"]))

    def _hand_over(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)


def watch_settings() -> kopf.OperatorSettings:
    """kopf, reduced to watching."""
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.queueing.idle_timeout = WORKER_IDLE_SECONDS
    settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    settings.watching.client_timeout = CLIENT_TIMEOUT_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.chunk_size = CHUNK_OBJECTS
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.enforce_retry_after = True
    return settings


def connection_info(credentials: Credentials) -> kopf.ConnectionInfo:
    """Our login as kopf wants it. It asks again when the API server refuses a token."""
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_data=_encode(credentials.authority),
        token=credentials.token or None,
        certificate_data=_encode(credentials.certificate),
        private_key_data=_encode(credentials.key),
    )


def _encode(pem: str) -> str | None:
    return base64.b64encode(pem.encode()).decode() if pem else None
