"""What parent and worker tell each other: messages of JSON behind their length, over a pair of sockets.

Its end means that the other one is gone. Nothing waits for the other to read: tables replace each other, demands too,
and a worker that reads nothing is ended soon (`parent`).
"""

import asyncio
import socket
from typing import Annotated, Literal

from covey_api.messages import Cancel, Demand, Endpoints
from covey_api.meta import Message
from pydantic import Field, TypeAdapter

_LENGTH_BYTES = 4
# A table of 64 MB has a hundred thousand endpoints.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class Name(Message):
    """How the controller calls the gateway."""

    kind: Literal["Name"] = "Name"
    name: str


class Table(Message):
    kind: Literal["Table"] = "Table"
    endpoints: Endpoints


class StaticTable(Message):
    """As it is in its file."""

    kind: Literal["StaticTable"] = "StaticTable"
    content: str
    name: str


class Gateways(Message):
    """How many there are, this one too."""

    kind: Literal["Gateways"] = "Gateways"
    count: int


class Begin(Message):
    """Listen: all that was in force was told."""

    kind: Literal["Begin"] = "Begin"


class Drain(Message):
    kind: Literal["Drain"] = "Drain"
    seconds: float
    why: str


class End(Message):
    """End this request where it is. To workers with the parent's number, which `Ended` gives back."""

    kind: Literal["End"] = "End"
    number: int
    cancel: Cancel
    by_operator: bool


class Ended(Message):
    """How many were ended."""

    kind: Literal["Ended"] = "Ended"
    number: int
    count: int


class PassOn(Message):
    """Tell all other gateways."""

    kind: Literal["PassOn"] = "PassOn"
    number: int
    cancel: Cancel


class PassedOn(Message):
    kind: Literal["PassedOn"] = "PassedOn"
    number: int
    gateways: int
    refusal: str = ""
    """Why nobody can be told."""


class Serving(Message):
    """It listens."""

    kind: Literal["Serving"] = "Serving"


class Alive(Message):
    kind: Literal["Alive"] = "Alive"


class Report(Message):
    """What it has, as for the controller. What names the gateway is empty."""

    kind: Literal["Report"] = "Report"
    demand: Demand
    is_news: bool
    """Whether the controller should hear of it at once."""


AnyMessage = Annotated[
    Name | Gateways | Table | StaticTable | Begin | Drain | End | Ended | PassOn | PassedOn | Serving | Alive | Report,
    Field(discriminator="kind"),
]
_READ: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)


def render(message: Message) -> bytes:
    content = message.model_dump_json(by_alias=True, exclude_none=True).encode()
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


class Channel:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> "Channel":
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, rendered: bytes) -> None:
        """`render`ed. Nothing happens where the other one is gone: `receive` tells."""
        if not self._writer.is_closing():
            self._writer.write(rendered)

    async def receive(self) -> AnyMessage | None:
        """None: the other one is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > MAX_MESSAGE_BYTES:
                return None
            return _READ.validate_json(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        self._writer.close()
