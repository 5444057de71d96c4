"""What is left of each pool, whatever its Node declares: figures of docs/adr/0049."""

import pytest
from covey_api.engines import Compute, Lane
from covey_planner.fit.reserves import reserve_bytes
from kit.builders import lane
from kit.planning import GIB, MIB

CPU, CUDA, METAL = lane(), lane(compute=Compute.CUDA, pool="CUDA0"), lane(compute=Compute.METAL)


@pytest.mark.parametrize(
    ("pool", "total", "declared", "lanes", "expected"),
    [
        ("CUDA0", 80 * GIB, GIB, (CUDA, CPU), 8 * GIB),
        ("CUDA0", 4 * GIB, GIB, (CUDA, CPU), 512 * MIB),
        ("Host", 64 * GIB, 3 * GIB, (CUDA, CPU), 3 * GIB),
        ("Host", 64 * GIB, GIB, (METAL, CPU), 16 * GIB),
        ("Host", 64 * GIB, 20 * GIB, (METAL, CPU), 20 * GIB),
    ],
    ids=["a tenth of a card", "at least what a desktop takes", "host as declared", "Metal's limit", "more declared"],
)
def test_reserve_of_a_pool(pool: str, total: int, declared: int, lanes: tuple[Lane, ...], expected: int) -> None:
    assert reserve_bytes(pool, total, declared, lanes) == expected
