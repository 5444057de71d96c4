"""Which process is heard when several report under one gateway's name, as `name_claims` says of nodes.

Else a copied disk's "nothing in flight" would stand for the first gateway's, and a drain would end its requests. It is
decided here, at the door, so that the board hears one process a name. Rejected: claims by the board, beside those of
nodes (its gateways' sessions and streams would need boots too, for what a refusal before it does as well).
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from covey_api.messages import Endpoints

from covey_controller.name_claims import NameClaims, NameTaken


class GatewayClaims:
    """`clock`: monotonic seconds. A gateway that doesn't say its boot is believed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims = NameClaims()
        self._streams: Counter[tuple[str, str]] = Counter()
        """That are open, by gateway and boot."""

    def hear(self, gateway: str, boot: str) -> None:
        """A demand. NameTaken of another process than the one that has this name."""
        if boot and not self._claims.admit(gateway, boot, self._clock(), is_streaming=self._is_streaming(gateway)):
            raise NameTaken(gateway, "gateway")

    def follow(
        self, gateway: str, boot: str, snapshots: AsyncIterator[Endpoints | None]
    ) -> AsyncGenerator[Endpoints | None]:
        """The stream, counted while it is read. NameTaken as `hear`."""
        is_streaming = self._is_streaming(gateway)
        if boot and not self._claims.may_stream(gateway, boot, self._clock(), is_streaming=is_streaming):
            raise NameTaken(gateway, "gateway")
        return self._count(gateway, boot, snapshots)

    async def _count(
        self, gateway: str, boot: str, snapshots: AsyncIterator[Endpoints | None]
    ) -> AsyncGenerator[Endpoints | None]:
        self._streams[gateway, boot] += 1
        try:
            async for snapshot in snapshots:
                yield snapshot
        finally:
            self._streams[gateway, boot] -= 1
            if not self._streams[gateway, boot]:
                del self._streams[gateway, boot]
            if isinstance(snapshots, AsyncGenerator):
                await snapshots.aclose()

    def _is_streaming(self, gateway: str) -> bool:
        holder = self._claims.holder(gateway)
        return bool(holder) and (gateway, holder) in self._streams
