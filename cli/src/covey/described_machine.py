"""What an agent would report of a machine that is only described: its pools, and the lanes that it would offer there.

It must say no lane that an agent on such a machine doesn't offer: LlamaServer everywhere, Mlx where there is Metal, and
what the Node's `spec.engines` names beside them or disables. Engines count as installed: what the fleet would come to
is asked, and not when.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from covey_api.companion import LOADED_BY
from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneState
from covey_api.meta import Document
from covey_api.node import MemoryPool, NodeFacts, NodeSpec, NodeStatus
from covey_api.units import Quantity, parse_quantity
from pydantic import Field

# A managed build, as `covey fit` takes it: it keeps few rows of logits.
_MANAGED = "0" * 64
# What the engine calls a device; the pool has the same name.
_DEVICE_NAMES = {Compute.CUDA: "CUDA", Compute.ROCM: "ROCm", Compute.VULKAN: "Vulkan"}
# Of these there are devices without memory of their own, whose driver may allow them a part of the machine's.
_ON_CHIP = frozenset({Compute.CUDA, Compute.ROCM})


class MachineDevice(Document):
    """One accelerator of a described machine."""

    compute: Compute
    memory: Quantity | None = None
    """Its own memory; absent for `Metal`, which fills the machine's."""
    limit: Quantity | None = None
    """In place of `memory`, for `Cuda` and `Rocm` on the processor's chip: what they can fill of the machine's."""


class Machine(Document):
    """What a machine is, in short."""

    memory: Quantity
    devices: Annotated[tuple[MachineDevice, ...], Field(max_length=16)] = ()


def render_status(machine: Machine, spec: NodeSpec) -> NodeStatus:
    """What its agent would report. ValueError for a device that has too little or too much memory to it."""
    pools = [MemoryPool(name=HOST_POOL, total_bytes=parse_quantity(machine.memory))]
    lanes: list[Lane] = []
    counts = Counter[Compute]()
    for device in machine.devices:
        limit = _read_limit(device)
        pool = None if limit else _DEVICE_NAMES.get(device.compute)
        if (pool is None) != (device.memory is None):
            must = "must be given" if pool else "must be absent"
            raise ValueError(f"`memory` of a device with compute '{device.compute}' {must}")
        if pool is not None and device.memory is not None:
            pool = f"{pool}{counts[device.compute]}"
            counts[device.compute] += 1
            pools.append(MemoryPool(name=pool, total_bytes=parse_quantity(device.memory)))
        lanes.append(_lane(EngineName.LLAMA_SERVER, device.compute, pool or HOST_POOL).changed(limit_bytes=limit))
    if not any(lane.compute is Compute.CPU for lane in lanes):
        lanes.append(_lane(EngineName.LLAMA_SERVER, Compute.CPU, HOST_POOL))
    lanes += _others(spec, has_metal=any(device.compute is Compute.METAL for device in machine.devices))
    disabled = {each.engine for each in spec.engines if each.disabled}
    # Neither system nor cores are asked for, and neither changes where something fits.
    facts = NodeFacts(os="", architecture="", cpu_cores=1, pools=tuple(pools))
    return NodeStatus(facts=facts, lanes=tuple(lane for lane in lanes if lane.engine not in disabled))


def _read_limit(device: MachineDevice) -> int:
    """0: it has memory of its own, or can fill all of the machine's."""
    if device.limit is None:
        return 0
    if device.compute not in _ON_CHIP:
        raise ValueError(f"`limit` of a device with compute '{device.compute}' must be absent")
    return parse_quantity(device.limit)


def _others(spec: NodeSpec, *, has_metal: bool) -> Iterator[Lane]:
    named = {each.engine for each in spec.engines}
    compute = Compute.METAL if has_metal else Compute.CPU
    if has_metal or EngineName.MLX in named:
        yield _lane(EngineName.MLX, compute, HOST_POOL)
    if EngineName.LLAMA_CPP in named:
        yield _lane(EngineName.LLAMA_CPP, compute, HOST_POOL)
    if EngineName.VLLM in named:  # the operator's own build
        yield Lane(engine=EngineName.VLLM, compute=Compute.CPU, state=LaneState.INSTALLED, pool=HOST_POOL)


def _lane(engine: EngineName, compute: Compute, pool: str) -> Lane:
    return Lane(
        engine=engine,
        compute=compute,
        state=LaneState.INSTALLED,
        digest=_MANAGED,
        pool=pool,
        companions=tuple(sorted(LOADED_BY.get(engine, ()))),
    )
