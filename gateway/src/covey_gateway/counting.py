"""How many tokens a prompt has, asked of the engine that would read it.

Only where the bound by its bytes is more than a shared cache has room for: to refuse it by a bound alone would be to
refuse most prompts of plain text that fit, which have a fourth as many tokens as bytes.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from covey_gateway.limits import MAX_REFUSAL_BYTES
from covey_gateway.routing.table import Target
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.http import render_engine_head
from covey_gateway.wire.request import Call, Request, render_request

# What of a chat is in its prompt.
_COUNTED = ("messages", "tools", "chat_template_kwargs", "reasoning_effort")


class _Counted(msgspec.Struct):
    input_tokens: int


def can_count(request: Request) -> bool:
    """Images are counted by nobody before they are read."""
    return request.call is Call.CHAT and not request.media


class Count:
    """One question. `on_counted` is told the answer, None where the engine has none; `on_unreachable`: no connection.

    A connection of its own: it is asked rarely, and one that was kept might be about to end.
    """

    def __init__(
        self,
        engines: Engines,
        target: Target,
        request: Request,
        model: str,
        request_id: str,
        on_counted: Callable[[int | None], None],
        on_unreachable: Callable[[str], None],
    ) -> None:
        self._engines = engines
        self._target = target
        self._on_counted = on_counted
        self._tell_unreachable = on_unreachable
        fields = {name: request.fields[name] for name in _COUNTED if name in request.fields}
        asked = replace(request, call=Call.COUNT, fields=fields, max_tokens=None)
        self._content = render_request(asked, model, target.engine)
        self._request_id = request_id
        self._connection: EngineConnection | None = None
        self._status = 0
        self._body = bytearray()
        self._is_over = False

    def start(self) -> None:
        self._engines.connect(self._target, self, fresh=True)

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._is_over = True
        if self._connection is not None:
            self._connection.abort()

    def _end(self, tokens: int | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_counted(tokens)

    # What the connection tells.

    def on_connected(self, connection: EngineConnection) -> None:
        if self._is_over:
            connection.retire()
            return
        self._connection = connection
        target = self._target
        head = render_engine_head(
            target.host, target.port, Call.COUNT, target.key, self._request_id, len(self._content), ""
        )
        connection.send(self, head, self._content)

    def on_unreachable(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_unreachable(reason)

    def on_engine_lost(self, reason: str) -> None:
        self._end(None)

    def on_engine_head(self, status: int, content_type: bytes, retry_after_seconds: int | None) -> None:
        self._status = status

    def on_engine_body(self, piece: bytes) -> None:
        self._body += piece[: MAX_REFUSAL_BYTES - len(self._body)]

    def on_engine_end(self) -> None:
        self._connection = None
        try:
            found = msgspec.json.decode(self._body, type=_Counted).input_tokens if self._status == 200 else None
        except msgspec.MsgspecError:
            found = None
        self._end(found)
