"""The reflex of the fleet API: reports that say nothing new, which in a fleet at rest are nearly all that is said.

It answers what `FleetRoutes.report` would answer, by the same board, and nothing else: who isn't admitted, is wrong or
has news meets the routes. Rejected: to compare a body with the last one before it is decoded. To decode one takes two
microseconds; tasks, routing and a response of two writes are what costs.
"""

from collections.abc import Callable

from covey_api.messages import FLEET_PREFIX, CertificateRole, Report
from pydantic import ValidationError

from covey_controller.denials import Denials
from covey_controller.ports import Board
from covey_controller.serving.protocol import Peer, Reflex


def build_beat_reflex(board: Board, denials: Denials, is_leading: Callable[[], bool]) -> Reflex:
    def answer(peer: Peer, url: bytes, body: bytes) -> bytes | None:
        if peer.role is not CertificateRole.AGENT or url != f"{FLEET_PREFIX}/nodes/{peer.name}/report".encode():
            return None
        if not is_leading() or denials.is_denied(peer):
            return None
        try:
            report = Report.model_validate_json(body)
        except ValidationError:
            return None
        known = board.on_beat(peer.name, report)
        return None if known is None else known.model_dump_json(by_alias=True, exclude_none=True).encode()

    return answer
