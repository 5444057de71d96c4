"""All that the workers of one gateway count together."""

from collections.abc import Callable
from dataclasses import dataclass

from covey_gateway.workers.endpoints import ENDPOINT, LEVELS_OF_PROCESS, PROCESS, TOKENS, SharedEndpoints
from covey_gateway.workers.figures import SharedFigures
from covey_gateway.workers.homes import SharedHomes
from covey_gateway.workers.keys import UNDER_WAY, SharedKeys
from covey_gateway.workers.memory import Memory


@dataclass(frozen=True, slots=True)
class Shared:
    keys: SharedKeys
    endpoints: SharedEndpoints
    figures: SharedFigures
    homes: SharedHomes


def share(memory: Memory, wakes: tuple[int, ...], clock: Callable[[], float]) -> Shared:
    """`wakes`: a pipe of each worker, by column."""
    return Shared(
        SharedKeys(memory),
        SharedEndpoints(memory, wakes, clock),
        SharedFigures(memory),
        SharedHomes(memory, clock),
    )


def clear_levels(memory: Memory, column: int) -> bool:
    """What was under way at a worker that is gone is over, but for what it had reserved of shared caches: engines
    notice a little later. Whether there is any of that: `clear_reservations` then."""
    for name in memory.names(UNDER_WAY):
        memory.row(name, 0, 1).columns[column][0] = 0
    is_reserved = False
    for name in memory.names(ENDPOINT):
        cells = memory.row(name, 0, 1).columns[column]
        for cell in range(len(cells)):
            if cell == TOKENS:
                is_reserved = is_reserved or cells[cell] > 0
            else:
                cells[cell] = 0
    for cell in LEVELS_OF_PROCESS:
        memory.row(PROCESS, 0, 1).columns[column][cell] = 0
    return is_reserved


def clear_reservations(memory: Memory, column: int) -> None:
    for name in memory.names(ENDPOINT):
        memory.row(name, 0, 1).columns[column][TOKENS] = 0
