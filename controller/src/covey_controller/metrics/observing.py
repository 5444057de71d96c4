"""What the figures' levels are looked up in: the loop, the board and what the loop saw last."""

from covey_api.messages import CertificateRole

from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.loop import ReconcileLoop
from covey_controller.metrics.figures import ControllerView, WatchView


def observe_controller(
    loop: ReconcileLoop, board: FleetBoard, history: History, watch: WatchView | None = None
) -> ControllerView:
    """What the loop saw before it lost the lead is another's to tell now."""
    streams = {
        CertificateRole.AGENT: sum(each.connected for each in board.observed.agents.values()),
        CertificateRole.GATEWAY: sum(each.connected for each in board.observed.gateways.values()),
    }
    if not loop.is_leading:
        return ControllerView(streams=streams, watch=watch)
    return ControllerView(True, board.order.term, tuple(history.objects.values()), streams, watch)
