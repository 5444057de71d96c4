"""How an engine process is started: the adapter's rendering, in a clean environment, on a free port of loopback."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from covey_api.engines import HOST_POOL, EngineName
from covey_api.instance import Instance, Member, MemberRole
from covey_api.messages import MemberAssignment
from covey_api.reasons import FailureCause
from covey_planner.fit.options import choose_threads

from covey_agent.engines.donors import find_donor_program, render_donor
from covey_agent.engines.mlx import step_seconds
from covey_agent.engines.servers.mlx_ring import RING_LOST, RING_STUCK
from covey_agent.ports import AgentError, EngineAdapter, Group, Launch, Neighbour, Ring
from covey_agent.supervisor.effects import StartKeeper

# What an engine may see of the agent's environment. Nothing else: it may hold tokens, and `LLAMA_ARG_*` would overrule
# what the stamp says.
INHERITED = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")


# A name server that is there answers in milliseconds.
RESOLVE_SECONDS = 10.0


async def choose_group(assignment: MemberAssignment, choose: Callable[[], int], kept_port: int = 0) -> Group | None:
    """The other members of its attempt that this one has to do with; None: it is the only one. AgentError where
    another's address is a name that nobody knows. `kept_port`: of a rank, as the others were told."""
    members = {each.name: each for each in assignment.instance.spec.members}
    own = members.get(assignment.member) or assignment.instance.spec.members[0]
    match own.role:
        case MemberRole.SINGLE:
            return None
        case MemberRole.DONOR:
            drivers = [each for each in members.values() if each.role is MemberRole.DRIVER]
            return Group(own.name, None, admits=tuple(Neighbour(each.name, each.node) for each in drivers))
        case MemberRole.DRIVER:
            fronts = {each.member: each for each in assignment.fronts}
            dials = [
                Neighbour(name, each.node, await resolve(fronts[name].address, each), fronts[name].port, choose())
                for name, each in members.items()
                if each.role is MemberRole.DONOR
            ]
            # Donors are ready when their driver starts: this is for a network that has to come back. A donor itself has
            # no deadline: its driver may have a large file to fetch first.
            return Group(own.name, assignment.instance.spec.form_seconds, dials=tuple(dials))
        case MemberRole.RANK:
            return await _choose_ring(assignment, own, choose, kept_port)


async def _choose_ring(assignment: MemberAssignment, own: Member, choose: Callable[[], int], kept_port: int) -> Group:
    """It dials the next rank, and the one before dials it; rank 0 comes after the last."""
    ranks = assignment.instance.spec.members
    index = ranks.index(own)
    after, before = ranks[(index + 1) % len(ranks)], ranks[index - 1]
    front = next(each for each in assignment.fronts if each.member == after.name)
    dialled = Neighbour(after.name, after.node, await resolve(front.address, after), front.port, choose())
    return Group(
        own.name,
        assignment.instance.spec.form_seconds,
        dials=(dialled,),
        admits=(Neighbour(before.name, before.node),),
        ring_port=choose(),
        front_port=kept_port,
        answers=index == 0,
        lost_status=RING_LOST,
        stuck_status=RING_STUCK,
        step_seconds=step_seconds(assignment.instance),
    )


async def resolve(address: str, member: Member) -> str:
    """Of this member, as a number: keepers ask no name server."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        who = f"member '{member.name}' on node '{member.node}'"
        message = f"{who} can't be dialled: its address '{address}' is not known here: {error or 'no answer'}"
        raise AgentError(FailureCause.NEIGHBOUR_ENDED, message) from error
    return str(found[0][4][0])


def render_launch(
    adapter: EngineAdapter, start: StartKeeper, folder: Path, port: int, group: Group | None = None, cpu_cores: int = 0
) -> Launch:
    """The launch with its environment and the assignment, by which an agent that lost its file knows what runs.
    `cpu_cores`: that this machine's processes may use; 0: it isn't known."""
    launch = replace(_render_engine(adapter, start, folder, port, group, cpu_cores), group=group)
    assignment = start.assignment
    clean = {name: os.environ[name] for name in INHERITED if name in os.environ}
    files = (*launch.files, ("assignment.json", assignment.model_dump_json(by_alias=True, exclude_none=True)))
    # vLLM's figures are of one load on another machine, and old stamps have a small process's.
    is_measured = assignment.instance.spec.engine is not EngineName.VLLM
    own = [member for member in assignment.instance.spec.members if member.name == assignment.member]
    memory_bytes = sum(costs.total_bytes for member in own for costs in member.costs if costs.pool == HOST_POOL)
    bound = memory_bytes if is_measured else 0
    return replace(launch, environment=clean | launch.environment, files=files, memory_bytes=bound)


def _render_engine(
    adapter: EngineAdapter, start: StartKeeper, folder: Path, port: int, group: Group | None, cpu_cores: int
) -> Launch:
    assignment = start.assignment
    instance = _with_own_threads(assignment, cpu_cores)
    if start.weights is None:
        own = next(each for each in instance.spec.members if each.name == assignment.member)
        return render_donor(find_donor_program(start.program), instance, own, port)
    files = (start.weights, folder)
    if group is not None and group.ring_port:
        rank = [each.name for each in instance.spec.members].index(assignment.member)
        ring = Ring(rank, group.ring_port, group.dials[0].local_port)
        return adapter.render(start.program, instance, *files, port, assignment.key, start.companions, ring=ring)
    donors = tuple(each.local_port for each in group.dials) if group else ()
    return adapter.render(start.program, instance, *files, port, assignment.key, start.companions, donors)


def _with_own_threads(assignment: MemberAssignment, cpu_cores: int) -> Instance:
    """As it is stamped; of several members, with the threads of this one's machine. Those that are stamped are for the
    first member's: more than there are cores wait for each other and starve the agent beside them."""
    instance = assignment.instance
    if not cpu_cores or assignment.member == instance.spec.members[0].name:
        return instance
    options = instance.spec.options.model_copy(update={"threads": choose_threads(cpu_cores)})
    return instance.model_copy(update={"spec": instance.spec.model_copy(update={"options": options})})


def choose_port() -> int:
    """A port of loopback that is free now. Who takes it before the engine does makes it exit; it then gets another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
