"""The last table on disk, from which a gateway serves as soon as it runs, with or without a controller.

It knows nothing of the fleet API: TLS and an HTTP client take about as long to load as the rest of the gateway, and a
restarted one answers before it has them. The file is written beside the applying, not before it: a slow disk must not
hold back a table.
"""

import asyncio
import logging
from pathlib import Path

from covey_api.messages import Endpoints
from covey_fleet_client.files import write_private
from pydantic import ValidationError

# How soon a disk that refused the table is tried again.
SAVE_AGAIN_SECONDS = 5.0

_log = logging.getLogger(__name__)


class KeptTable:
    """`folder` is the gateway's private folder, which is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "table.json"
        self._is_unsaved = asyncio.Event()
        self._latest: Endpoints | None = None

    def load(self) -> Endpoints | None:
        """The table that was in force when the gateway last ran; None if it left none that can be used."""
        try:
            saved = Endpoints.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            _log.warning("'%s' can't be used, the controller's table is waited for: %s", self._path, error)
            return None
        _log.info("routing by the table of the last run until the controller sends one")
        return saved

    def keep(self, table: Endpoints) -> None:
        """This one is in force now."""
        self._latest = table
        self._is_unsaved.set()

    async def run(self) -> None:
        """The newest table to disk, whenever there is one. A full disk costs a start meanwhile, not this run."""
        refusal = ""
        while True:
            await self._is_unsaved.wait()
            self._is_unsaved.clear()
            if self._latest is None:
                continue
            content = self._latest.model_dump_json(by_alias=True, exclude_none=True)
            try:
                await asyncio.to_thread(write_private, self._path, content)
                refusal = ""
            except OSError as error:
                words = error.strerror or str(error)
                if words != refusal:  # once, not at each try
                    _log.error("the table can't be kept in '%s', it is tried again: %s", self._path, words)
                refusal = words
                self._is_unsaved.set()
                await asyncio.sleep(SAVE_AGAIN_SECONDS)
