"""Gateways that were removed from the fleet, written down for keepers, which read the file by themselves."""

import json
import logging
from pathlib import Path

from covey_api.messages import RefusedGateway
from covey_fleet_client.files import write_private

from covey_agent.keeper.credentials import REFUSED_NAME

logger = logging.getLogger(__name__)


class RefusedFile:
    """`folder`: of the identity. Written only when it says something else than before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REFUSED_NAME
        self._written: tuple[RefusedGateway, ...] | None = None

    def write(self, gateways: tuple[RefusedGateway, ...]) -> None:
        """A disk that refuses is told, and tried again with the next snapshot."""
        if gateways == self._written:
            return
        document = {"gateways": {each.name: each.begins_until for each in gateways}}
        try:
            write_private(self._path, json.dumps(document))
        except OSError as error:
            logger.error("'%s' can't be written, removed gateways are not refused yet: %s", self._path, error)
        else:
            self._written = gateways
