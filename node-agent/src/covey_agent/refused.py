"""Gateways and nodes that were removed from the fleet, written down for who lets others in: each reads it by itself."""

import json
import logging
from pathlib import Path

from covey_api.messages import RefusedPeer
from covey_fleet_client.files import write_private

from covey_agent.keeper.credentials import REFUSED_NAME

logger = logging.getLogger(__name__)


class RefusedFile:
    """`folder`: of the identity. Written only when it says something else than before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REFUSED_NAME
        self._written: tuple[tuple[RefusedPeer, ...], tuple[RefusedPeer, ...]] | None = None

    def write(self, gateways: tuple[RefusedPeer, ...], nodes: tuple[RefusedPeer, ...]) -> None:
        """A disk that refuses is told, and tried again with the next snapshot."""
        if (gateways, nodes) == self._written:
            return
        kinds = {"gateways": gateways, "nodes": nodes}
        document = {kind: {each.name: each.begins_until for each in peers} for kind, peers in kinds.items()}
        try:
            write_private(self._path, json.dumps(document))
        except OSError as error:
            logger.error("'%s' can't be written, who was removed is not refused yet: %s", self._path, error)
        else:
            self._written = (gateways, nodes)
