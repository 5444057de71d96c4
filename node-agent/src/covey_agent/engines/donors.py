"""A donor's engine: `ggml-rpc-server`, which lends its memory and processors to a driver on another node.

It has no key: it listens on loopback, and its keeper's front lets nobody in but the driver's node. It serves one
connection after the other, so it is asked for nothing but whether it listens. It loads no file: the driver sends it the
layers. Its cache of these (`-c`) is off, since it bounds no folder.
"""

import asyncio
from dataclasses import replace

from covey_api.engines import HOST_POOL
from covey_api.instance import Instance, Member
from covey_api.reasons import FailureCause

from covey_agent.ports import AgentError, EngineProgram, Launch

# Beside `llama-server`, of the same build: driver and donor must be.
PROGRAMS = ("ggml-rpc-server", "rpc-server")
CPU_DEVICE = "CPU"
# Loopback answers at once.
_CONNECT_SECONDS = 5.0


def has_donor_program(program: EngineProgram) -> bool:
    return any(program.path.with_name(name).is_file() for name in PROGRAMS)


def find_donor_program(program: EngineProgram) -> EngineProgram:
    """The donor's program of this llama.cpp. AgentError when it came without."""
    for name in PROGRAMS:
        path = program.path.with_name(name)
        if path.is_file():
            return replace(program, path=path)
    raise AgentError(
        FailureCause.NO_USABLE_ENGINE,
        f"'{program.path}' has no `{PROGRAMS[0]}` beside it, so this node can't be a donor. Use a llama.cpp that was "
        "built with `-DGGML_RPC=ON`.",
    )


def render_donor(program: EngineProgram, instance: Instance, member: Member, port: int) -> Launch:
    """Pure. One device, so that the driver counts one: what it has more of would be filled too."""
    devices = sorted({each.pool for each in member.costs if each.pool != HOST_POOL})
    argv = (
        *program.command,
        *("-H", "127.0.0.1", "-p", str(port), "-d", ",".join(devices) or CPU_DEVICE),
        *("-t", str(instance.spec.options.threads)),
    )
    return Launch(argv, program.environment, ())


async def explain_not_listening(port: int) -> str:
    """Why a donor can't be used yet; empty: it listens. One bounded try; never raises."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return "nothing listens on its port"
    writer.close()
    return ""
