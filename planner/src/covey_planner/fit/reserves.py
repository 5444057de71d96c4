"""What of each pool is never planned with, whatever its Node declares (docs/adr/0049).

A pool's total is what the device has, not what an engine can have of it: a screen, the driver and whatever else runs
take their part, and an allocation finds no block in the last of it. Reserves come from totals alone, so every replan
says the same; what runs already keeps what it has.
"""

from collections.abc import Iterable

from covey_api.engines import HOST_POOL, Compute, Lane

# Of a device's own memory (0.90 of it are usable, by what others found).
_DEVICE_PERCENT = 10
# Of a small card a tenth is less than a desktop takes (580 MiB were seen of 24560).
_DEVICE_LEAST_BYTES = 512 * 2**20
# Metal gives one process at most three quarters of the machine's memory (0.74 of 16 GiB were measured elsewhere).
_METAL_PERCENT = 25


def reserve_bytes(pool: str, total_bytes: int, declared_bytes: int, lanes: Iterable[Lane]) -> int:
    """`declared_bytes`: what the Node wants left of the host's memory. `lanes`: all that the node offers."""
    if pool != HOST_POOL:
        return max(_share(total_bytes, _DEVICE_PERCENT), _DEVICE_LEAST_BYTES)
    if any(lane.compute is Compute.METAL for lane in lanes):
        return max(_share(total_bytes, _METAL_PERCENT), declared_bytes)
    return declared_bytes


def _share(count: int, percent: int) -> int:
    return -(-count * percent // 100)
