"""Lanes of LlamaServer: the CPU, and the devices that the program itself lists.

What the driver's own tools see is not asked here: a device counts when this engine, in this build, can fill its memory.
A lane's pool has the engine's name of the device (`Vulkan0`), so that stamped bytes, readings and `-dev` mean the same.
Where a device fills the machine's own memory the pool is the host's: the same bytes must not be promised twice (ADR
37).
"""

import re
from dataclasses import dataclass

from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneBuild, LaneState
from covey_api.instance import MemberRole
from covey_api.node import MemoryPool

# `  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23980 MiB free)`
_DEVICE = re.compile(r"^ +([A-Za-z]+)([0-9]*): (.+) \(([0-9]+) MiB, ([0-9]+) MiB free\)$", re.MULTILINE)
# `ggml_vulkan: 0 = AMD Radeon 780M (RADV PHOENIX) (radv) | uma: 1 | fp16: 1 | …`
_UNIFIED = re.compile(r"^ggml_vulkan: ([0-9]+) = .*\| uma: 1\b", re.MULTILINE)
# `  Device 0: AMD Radeon Graphics, gfx1151 (0x1151), VMM: no, Wave Size: 32`, after `found 1 ROCm devices`
_ROCM_ARCHITECTURE = re.compile(r"^ +Device ([0-9]+): .*, (gfx[0-9a-f]+)\b", re.MULTILINE)
# AMD's processors with graphics, by the architecture of these: Raven to Rembrandt, Phoenix, Strix Point and Halo.
_AMD_APUS = re.compile(r"gfx(902|909|90c|1013|103[3567]|1103|115[0123])")
# The same by name, where a build doesn't say the architecture; NVIDIA's of Grace Blackwell and Jetson.
_ON_CHIP = re.compile(r"\b(GB10|Orin|Thor|Xavier)\b|Radeon(\(TM\))? (Graphics|[0-9]{3}M|80[0-9]{2}S)\b")
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
DONATING = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
"""What a build can be of an Instance of several members, where the donors' program is there too."""


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
    limit_bytes: int = 0
    """The most that it can fill of the host's memory, where it shares that; 0: not known, or all."""


def parse_devices(text: str, set_aside: tuple[int, int] = (0, 0), reach: int = 0) -> tuple[EngineDevice, ...]:
    """Devices in the output of `--list-devices` that have memory and an own compute.

    `set_aside`: total and free of what the firmware took from the host's memory for a processor's AMD graphics, as the
    kernel counts it. Of a device on the chip the engine lists the host's free memory. `reach`: what AMD's driver lets
    such graphics fill, by default their own and half of the host's memory.

    1. Vulkan on a device that shares the host's memory (`uma: 1`): left out, as slow as the CPU or slower there.
    2. ROCm on such a device, where most of what it fills was set aside for it: that is a pool of its own, for the host
       doesn't have it.
    3. Metal, CUDA and ROCm else: its pool is the host's. Where the same compute has a pool of its own it is left out:
       an engine without `-dev` would take both.
    4. Everything else: a pool of its own.
    """
    unified = {f"Vulkan{number}" for number in _UNIFIED.findall(text)}
    architectures = {f"ROCm{number}": name for number, name in _ROCM_ARCHITECTURE.findall(text)}
    found: list[EngineDevice] = []
    for prefix, number, description, total, free in _DEVICE.findall(text):
        name, compute = f"{prefix}{number}", _COMPUTES.get(prefix)
        if compute is None or int(total) == 0 or name in unified or _SOFTWARE.search(description):
            continue
        limit_bytes = 0
        pool, total_bytes, free_bytes = name, int(total) * _MIB, int(free) * _MIB
        if _is_of_host(compute, description, architectures.get(name, "")):
            if compute is Compute.ROCM and 2 * set_aside[0] > total_bytes:
                total_bytes, free_bytes = min(total_bytes, set_aside[0]), set_aside[1]
            else:
                pool, limit_bytes = HOST_POOL, reach if compute is Compute.ROCM else 0
        found.append(EngineDevice(name, description, compute, pool, total_bytes, free_bytes, limit_bytes))
    carded = {device.compute for device in found if device.pool != HOST_POOL}
    return tuple(device for device in found if device.pool != HOST_POOL or device.compute not in carded)


def _is_of_host(compute: Compute, description: str, architecture: str) -> bool:
    """Whether the device fills the machine's own memory."""
    match compute:
        case Compute.METAL:
            return True
        case Compute.CUDA | Compute.ROCM:
            is_apu = _AMD_APUS.fullmatch(architecture) is not None
            return is_apu or (not architecture and _ON_CHIP.search(description) is not None)
        case _:
            return False


def plan_lanes(
    version: str,
    digest: str,
    state: LaneState,
    devices: tuple[EngineDevice, ...],
    versions: tuple[str, ...] = (),
    *,
    donates: bool = False,
    lacks_features: tuple[str, ...] = (),
    builds: tuple[LaneBuild, ...] = (),
) -> tuple[Lane, ...]:
    """One lane per device, then the CPU. `donates`: the donors' program is there too. `builds`: the other versions."""
    pools = [(device.compute, device.pool, device.limit_bytes) for device in devices]
    return tuple(
        Lane(
            engine=EngineName.LLAMA_SERVER,
            compute=compute,
            state=state,
            version=version,
            digest=digest,
            pool=pool,
            versions=versions,
            limit_bytes=limit,
            companions=tuple(CompanionRole),
            roles=DONATING if donates else (),
            lacks_features=lacks_features,
            builds=builds,
        )
        for compute, pool, limit in dict.fromkeys([*pools, (Compute.CPU, HOST_POOL, 0)])
    )


def device_pools(devices: tuple[EngineDevice, ...]) -> tuple[MemoryPool, ...]:
    """Pools of memory that only an accelerator has."""
    return tuple(
        MemoryPool(name=device.pool, total_bytes=device.total_bytes) for device in devices if device.pool != HOST_POOL
    )
