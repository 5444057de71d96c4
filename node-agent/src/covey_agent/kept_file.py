"""`agent/assignments.json`: what the supervisor keeps, on disk. Whole or not at all; 0600: it holds engines' keys."""

import logging
import os
from pathlib import Path

import psutil
from covey_fleet_client.files import write_private
from pydantic import ValidationError

from covey_agent.supervisor.kept import Kept

logger = logging.getLogger(__name__)


class KeptFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "assignments.json"

    def read(self) -> Kept:
        """What was kept. A file that can't be read is put aside and told: what runs is found by its keepers."""
        try:
            return Kept.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return Kept()
        except (OSError, ValidationError) as error:
            aside = self._path.with_suffix(".unreadable")
            os.replace(self._path, aside)
            logger.error(
                "'%s' could not be read and is '%s' now; starting from what runs: %s", self._path, aside, error
            )
            return Kept()

    def write(self, kept: Kept) -> None:
        write_private(self._path, kept.model_dump_json(by_alias=True, exclude_none=True))


def observe_boot_id() -> str:
    """What tells one boot, and so one monotonic clock, from another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))
