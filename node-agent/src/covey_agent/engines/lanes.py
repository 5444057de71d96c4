"""Lanes of LlamaServer: the CPU, and the devices that the program itself lists.

What the driver's own tools see is not asked here: a device counts when this engine, in this build, can fill its memory.
A lane's pool has the engine's name of the device (`Vulkan0`), so that stamped bytes, readings and `-dev` mean the same.
"""

import re
from dataclasses import dataclass

from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneState
from covey_api.node import MemoryPool

# `  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23980 MiB free)`
_DEVICE = re.compile(r"^ +([A-Za-z]+)([0-9]*): (.+) \(([0-9]+) MiB, ([0-9]+) MiB free\)$", re.MULTILINE)
# `ggml_vulkan: 0 = AMD Radeon 780M (RADV PHOENIX) (radv) | uma: 1 | fp16: 1 | …`
_UNIFIED = re.compile(r"^ggml_vulkan: ([0-9]+) = .*\| uma: 1\b", re.MULTILINE)
# Vulkan on the CPU: slower than the CPU backend, in the same memory.
_SOFTWARE = re.compile(r"llvmpipe|swiftshader|lavapipe|softpipe", re.IGNORECASE)
_COMPUTES = {
    "CUDA": Compute.CUDA,
    "ROCm": Compute.ROCM,
    "Vulkan": Compute.VULKAN,
    "Metal": Compute.METAL,
    "MTL": Compute.METAL,
}
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """One accelerator as the engine lists it."""

    name: str
    description: str
    compute: Compute
    pool: str
    """`Host` where the device shares the machine's memory."""
    total_bytes: int
    available_bytes: int


def parse_devices(text: str) -> tuple[EngineDevice, ...]:
    """Devices in the output of `--list-devices` that have memory and an own compute.

    Integrated GPUs are left out (`uma: 1`): what they fill is the host's memory, which a pool of their own would
    promise twice. Metal is the exception: there the engine is made for it, and the pool is the host's.
    """
    unified = {f"Vulkan{number}" for number in _UNIFIED.findall(text)}
    found: list[EngineDevice] = []
    for prefix, number, description, total, free in _DEVICE.findall(text):
        name, compute = f"{prefix}{number}", _COMPUTES.get(prefix)
        if compute is None or int(total) == 0 or name in unified or _SOFTWARE.search(description):
            continue
        pool = HOST_POOL if compute is Compute.METAL else name
        found.append(EngineDevice(name, description, compute, pool, int(total) * _MIB, int(free) * _MIB))
    return tuple(found)


def plan_lanes(version: str, digest: str, state: LaneState, devices: tuple[EngineDevice, ...]) -> tuple[Lane, ...]:
    """One lane per device, then the CPU."""
    pools = [*((device.compute, device.pool) for device in devices), (Compute.CPU, HOST_POOL)]
    return tuple(
        Lane(
            engine=EngineName.LLAMA_SERVER,
            compute=compute,
            state=state,
            version=version,
            digest=digest,
            pool=pool,
            companions=tuple(CompanionRole),
        )
        for compute, pool in dict.fromkeys(pools)
    )


def device_pools(devices: tuple[EngineDevice, ...]) -> tuple[MemoryPool, ...]:
    """Pools of memory that only an accelerator has."""
    return tuple(
        MemoryPool(name=device.pool, total_bytes=device.total_bytes) for device in devices if device.pool != HOST_POOL
    )
