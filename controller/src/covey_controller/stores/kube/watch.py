"""kopf as a watcher: each object that appears, changes or goes is handed on, and nothing else is asked of kopf.

No handler but `on.event`: so no finalizer, annotation, status, Event or peering object of kopf's is ever written, and
an object is not stored twice in its own annotations. Indexes and a limit of workers are left out together: a limit
below the number of indexed objects locks kopf up at its start, and our callback never waits, so nothing piles up.

It runs in a thread with a loop of its own. In the controller's loop it would take over SIGTERM, cancel every task that
began after it when it ends, and arm a timer that kills the process ten minutes after a cancellation; and a loop that is
busy here would be silence there. Scanning is off: kinds that are missing are the listing's to notice (`sync`).

The server ends each watch after some minutes, and a silent one is given up sooner; both are begun anew by kopf. Whether
anything still comes through is judged by `sync`, which ends a watch that has fallen behind.

What must hold at its end, whatever the network does: nothing is handed on any more, and every socket is closed. So the
HTTP session is ours, made by the login that kopf asks for. A login that fails must return nothing: raising ends kopf's
own task for logins, and everybody else waits for it for ever. kopf is ended by cancellation: a flag costs it five
seconds whenever it was about to log in, and a flag of threads holds a thread that nobody ends when kopf ends by itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import aiohttp
import kopf
from covey_api.kinds import Kind
from covey_api.meta import GROUP, VERSION

from covey_controller.stores.kube.client import JsonObject
from covey_controller.stores.kube.credentials import Credentials, InvalidLogin, Login, build_tls
from covey_controller.stores.kube.sockets import Sockets, connect_with

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
# kopf's own, of ten and more minutes, would outlast an API server's absence by as much. After the last try the watch
# ends, and `sync` begins another one.
ERROR_BACKOFFS_SECONDS = (0.5, 1.0, 2.0, 4.0)
# kopf keeps a task an object for this long after its last event.
WORKER_IDLE_SECONDS = 1.0
# kopf itself gives its tasks five seconds, and a cancellation that comes while it starts may be lost on it.
STOP_SECONDS = 8.0
STOP_TRIES = 3


class KopfWatch:
    """One run of kopf in its thread."""

    def __init__(self, login: Login, kinds: Sequence[type[Kind]], deliver: Deliver) -> None:
        """`deliver` is called in the loop that `start` is called in, with the event's type: None while listing."""
        self._kinds = kinds
        self._deliver = deliver
        self._session = WatchSession(login)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._cancel: Callable[[], object] | None = None
        self.ended = asyncio.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Hand on nothing more, and end it. One that doesn't end in time is told; it has no connection left then."""
        self._is_stopped.set()
        for _ in range(STOP_TRIES):
            if self._cancel is not None:
                with suppress(RuntimeError):  # its loop is closed: it has ended
                    self._cancel()
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
            if not self._thread.is_alive():
                return
            self._session.sockets.shut_down()
        log.error("a watch can't be ended; its connections are closed, and it isn't used")

    def _run(self) -> None:
        # What goes wrong in there comes out as `error`, once. kopf's own lines come with every retry of every watch.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        try:
            asyncio.run(self._watch())
        except BaseException as error:
            self.error = error
        finally:
            self._hand_over(self.ended.set)

    async def _watch(self) -> None:
        this = cast("asyncio.Task[None]", asyncio.current_task())
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(this.cancel)
        # Each of kopf's tasks fails for the same reason, and nobody asks them.
        loop.set_exception_handler(lambda _, context: log.debug("in a watch: %s", context.get("message")))
        if self._is_stopped.is_set():
            return
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=watch_settings(),
                standalone=True,
                clusterwide=True,
                # By itself it asks for a user name, which a pod may not have.
                identity=cast("Any", "covey-controller"),
            )
        finally:
            await self._session.close()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, retries=1)
        async def login(**_: object) -> kopf.AiohttpSession | None:
            return await self._session.log_in()

        for kind in self._kinds:
            self._watch_kind(registry, kind)
        return registry

    def _watch_kind(self, registry: kopf.OperatorRegistry, kind: type[Kind]) -> None:
        @kopf.on.event(GROUP, VERSION, kind.PLURAL, registry=registry, id=kind.PLURAL)
        async def observe(event: kopf.RawEvent, **_: object) -> None:
            self._hand_over(self._observe, kind, event["type"], dict(event["object"]))

    def _observe(self, kind: type[Kind], event: str | None, raw: JsonObject) -> None:
        if not self._is_stopped.is_set():
            self._deliver(kind, event, raw)

    def _hand_over(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)


class WatchSession:
    """What kopf speaks to the API server with. kopf logs in at first, and when the API server refuses its token."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._credentials: Credentials | None = None
        self._http: aiohttp.ClientSession | None = None
        self.sockets = Sockets()

    async def log_in(self) -> kopf.AiohttpSession | None:
        """A session by the login's files; None if they can't be read, or say what was just refused: the watch ends."""
        try:
            credentials = await asyncio.to_thread(self._login.read)
            if credentials == self._credentials:
                return None
            tls = build_tls(credentials)
        except InvalidLogin as error:
            log.debug("a watch can't log in: %s", error)
            return None
        if self._http is not None:
            await self._http.close()
        self._credentials = credentials
        headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
        headers |= {"User-Agent": "covey-controller"}
        # kopf holds a stream a kind, and a few short calls.
        self._http = aiohttp.ClientSession(connector=connect_with(self.sockets, limit=0, tls=tls), headers=headers)
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=self._http)

    async def close(self) -> None:
        """Every socket is closed after it."""
        if self._http is not None:
            await self._http.close()
        await self.sockets.close()


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
    settings.networking.error_backoffs = ERROR_BACKOFFS_SECONDS
    settings.networking.enforce_retry_after = True
    return settings
