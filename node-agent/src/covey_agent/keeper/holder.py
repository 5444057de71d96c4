"""Who holds a member whose `keeper.json` is gone and who answers nothing: a paused keeper, most likely.

Two witnesses, for what is found is killed: the kernel names the process that listens on the folder's socket, and that
process was started as the keeper of this folder.
"""

from pathlib import Path

import psutil

from covey_agent.keeper.link import LinkError, connect


async def observe_holder(folder: Path) -> int:
    """The process id of the keeper that listens in this folder, also when it answers nothing; 0: there is none."""
    try:
        link = await connect(folder)
    except LinkError:
        return 0
    link.close()
    return link.peer_pid if _is_keeper_of(link.peer_pid, folder) else 0


def _is_keeper_of(pid: int, folder: Path) -> bool:
    try:
        words = psutil.Process(pid).cmdline() if pid else []
    except psutil.Error:
        return False
    return len(words) > 1 and Path(words[-2]).name == "keeper.py" and words[-1] == str(folder)
