"""`--stop-all`: end every keeper of a state folder, for a parent whose agent is gone."""

import asyncio
import logging
from pathlib import Path

from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.ports import AgentError, EngineProcess
from covey_agent.supervisor.advance import STOP_GRACE_SECONDS

logger = logging.getLogger(__name__)

# SIGTERM, five seconds, SIGKILL, and an engine of many gigabytes to be unmapped.
STOP_SECONDS = 15.0


async def stop_all(members: Path) -> int:
    """Stop what lives; returns how many members could not be stopped. Their folders stay, with the exit records."""
    keepers = ProcessKeepers(members, 0)
    ended = await asyncio.gather(*(stop_member(keepers, instance_id) for instance_id in keepers.observe_living()))
    await keepers.end_left()
    keepers.close()
    return ended.count(False)


async def stop_member(keepers: ProcessKeepers, instance_id: str) -> bool:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            if isinstance(await keepers.find(instance_id, ""), EngineProcess):
                await keepers.stop(instance_id, STOP_GRACE_SECONDS)
                await keepers.wait_exit(instance_id)
                await keepers.release(instance_id)
    except (AgentError, TimeoutError) as error:
        logger.error("the member of instance id '%s' could not be stopped: %s", instance_id, error or "no end in time")
        return False
    logger.info("stopped the member of instance id '%s'", instance_id)
    return True
