"""What the end of an engine means: the keeper's record and the adapter's reading of it, as a cause and words."""

from covey_api.instance import Instance
from covey_api.reasons import FailureCause

from covey_agent.ports import EngineAdapter, EngineExit


def explain_exit(adapter: EngineAdapter, instance: Instance, ended: EngineExit) -> tuple[FailureCause | None, str]:
    """Cause and words; cause None when it ended because Covey asked it to.

    1. No record: the keeper is lost, and its engine with it.
    2. Asked by an agent, or by the keeper because no agent claimed it: no failure.
    3. The keeper itself was asked to end: somebody outside Covey did it. Or another member of the attempt ended,
       or waited for this one in vain.
    4. The kernel killed for lack of memory meanwhile, and this one by SIGKILL: out of memory.
    5. What the adapter reads in status and last words.
    """
    see = f" Its output: 'agent/members/{instance.spec.instance_id}/output.log' in the node's state folder"
    if ended.status is None:  # 1
        words = "the engine's keeper ended without an exit record, and the engine with it: something killed it."
        return FailureCause.KEEPER_LOST, words + see
    match ended.ended_by:
        case "Stop":  # 2
            return None, "stopped as asked"
        case "Orphaned":
            return None, "its keeper stopped it, because no agent claimed it in time"
        case "Terminated":  # 3
            return FailureCause.KILLED, "the engine's keeper was asked to end by SIGTERM: Covey didn't send it"
        case "Stuck":
            return FailureCause.WEDGED, f"'{instance.spec.engine}' {ended.why}.{see}"
        case "Neighbour":
            return FailureCause.NEIGHBOUR_ENDED, ended.why
        case _:
            cause, words = adapter.classify_exit(ended.status, ended.tail)
    if ended.out_of_memory:  # 4
        cause, words = FailureCause.OUT_OF_MEMORY, f"the kernel ended it for lack of memory ({words})"
    met = f"; {ended.why}" if ended.why else ""
    return cause, f"'{instance.spec.engine}' {words}{met}.{see}".replace("..", ".")  # 5
