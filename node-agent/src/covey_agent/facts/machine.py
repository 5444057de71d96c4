"""The port `Facts`: what this machine is. Never raises: what can't be known stays out."""

import asyncio
import logging
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from covey_api.engines import HOST_POOL
from covey_api.messages import PoolReading
from covey_api.node import Device, MemoryPool, NodeFacts

from covey_agent.engines.lanes import EngineDevice, device_pools
from covey_agent.facts.devices import observe_nvidia
from covey_agent.facts.effort import observe_effort
from covey_agent.facts.host import (
    observe_cpu_cores,
    observe_cpu_model,
    observe_libc,
    observe_memory_bytes,
    observe_os_version,
)
from covey_agent.facts.tools import SystemTools
from covey_agent.facts.usage import Usage, observe_taken_bytes
from covey_agent.ports import Effort

logger = logging.getLogger(__name__)

_ROOT = Path("/")


class MachineFacts:
    """Facts of the host, with the accelerators that the engine listed last as pools beside its memory."""

    def __init__(self, cache: Path, engine_devices: Callable[[], tuple[EngineDevice, ...]]) -> None:
        self._cache = cache
        self._engine_devices = engine_devices
        self._usage = Usage(_ROOT)
        self._tools = SystemTools(shutil.which, _ROOT)

    async def observe_facts(self) -> NodeFacts:
        devices = await self._observe_devices()
        # Small files of the kernel, and a statfs that hangs with its file system: not on the loop.
        return await asyncio.to_thread(self._observe_host, devices)

    def observe_readings(self) -> tuple[PoolReading, ...]:
        _, available_bytes = observe_memory_bytes(_ROOT)
        return (
            PoolReading(name=HOST_POOL, available_bytes=available_bytes),
            *(
                PoolReading(name=device.pool, available_bytes=device.available_bytes)
                for device in self._engine_devices()
                if device.pool != HOST_POOL
            ),
        )

    def observe_shared_devices(self) -> frozenset[str]:
        return frozenset(device.name for device in self._engine_devices() if device.pool == HOST_POOL)

    def observe_used_bytes(self, pid: int) -> int:
        return self._usage.observe_used_bytes(pid)

    def observe_taken_bytes(self, pid: int) -> int:
        return observe_taken_bytes(_ROOT, pid)

    def observe_effort(self, pid: int) -> Effort | None:
        return observe_effort(pid)

    async def _observe_devices(self) -> tuple[Device, ...]:
        return (*await observe_nvidia(shutil.which("nvidia-smi")), *await self._tools.observe_devices())

    def _observe_host(self, devices: tuple[Device, ...]) -> NodeFacts:
        total_bytes, _ = observe_memory_bytes(_ROOT)
        return NodeFacts(
            os=sys.platform,
            os_version=observe_os_version(_ROOT),
            architecture=platform.machine()[:32],
            libc=observe_libc(),
            hostname=socket.gethostname()[:253],
            cpu_model=observe_cpu_model(_ROOT),
            cpu_cores=observe_cpu_cores(_ROOT),
            pools=(MemoryPool(name=HOST_POOL, total_bytes=total_bytes), *device_pools(self._engine_devices())),
            devices=devices,
            disk_total_bytes=_observe_disk_bytes(self._cache),
        )


def _observe_disk_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return 0
