"""What the ASGI app answers, written down like everything else: lists, probes, cancels, and what isn't there."""

from typing import TYPE_CHECKING, Any

from covey_gateway.records import Record
from covey_gateway.traffic import Traffic
from covey_gateway.wire.formats import choose_format

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Recorded:
    """An ASGI app around another one. `scope["state"]` has the caller and the request's id."""

    def __init__(self, app: "ASGIApp", traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        state: dict[str, Any] = scope.get("state", {})
        path = str(scope["path"])
        client = scope.get("client")
        record = Record(
            str(scope["method"]),
            path,
            str(state["request_id"]),
            self._traffic.now(),
            format=choose_format(path.encode()).name,
            client=str(client[0]) if client else "",
            key=state["caller"].key,
            status=500,
        )

        async def send_counted(message: "Message") -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            else:
                record.answer_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._traffic.ledger.close(record)
