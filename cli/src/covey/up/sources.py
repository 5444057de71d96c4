"""One state folder under one source after another: what the last one ran isn't begun again beside the next one's.

An agent begins again what it was told to run, before a controller says anything: right for a machine whose controller
is away, and as right where its source was emptied by mistake. Under another source it would be engines that nobody
asked for, a quarter of an hour long. Rejected: to forget at each orderly end (the next start with the same source would
wait for the controller), and to have the controller drain strays at once (it can't tell this case from a lost store).
"""

import contextlib
import shutil
from pathlib import Path

from covey_fleet_client.files import write_private

from covey.up.left import observe_agent, observe_left

# What agent and gateway keep of a controller's word, below the state folder.
TOLD = ("agent/assignments.json", "gateway/table.json")


def forget_last_source(state: Path, source: str) -> None:
    """To be called while neither agent nor gateway runs. Where an engine runs all is kept that is known."""
    record = state / "source"
    with contextlib.suppress(OSError):  # a full disk costs no start
        last = record.read_text(errors="replace") if record.exists() else source
        if last != source and not observe_left(state).engines and not observe_agent(state):
            shutil.rmtree(state / "agent" / "members", ignore_errors=True)
            for name in TOLD:
                (state / name).unlink(missing_ok=True)
        write_private(record, source)
