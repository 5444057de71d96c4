"""How the layers of a model are shared among members, and what each member then holds. Arithmetic alone.

A share is in proportion to the memory that a member has for it, so that all are equally full and the next replica finds
the same picture; never more than fits. Bytes of a share are rounded up: an estimate that is short kills a machine.
"""

from collections.abc import Sequence

from covey_planner.fit.estimate import CostFormula


def layer_bytes(formula: CostFormula, window: int, layers: int) -> int:
    """What one layer takes: its part of the weights, and of everything that each layer keeps for every slot."""
    kept = formula.weights_bytes + formula.kv_cache_bytes(window) + formula.checkpoint_bytes(window)
    return -(-kept // layers)


def fixed_bytes(formula: CostFormula, window: int) -> int:
    """What a member takes whatever its share: buffers, the process, workspace."""
    return (
        formula.total_bytes(window)
        - formula.weights_bytes
        - formula.kv_cache_bytes(window)
        - (formula.checkpoint_bytes(window))
    )


def share_layers(layers: int, usable: Sequence[int], per_layer: int) -> tuple[int, ...] | None:
    """Layers of each member, at least one; `usable`: bytes that each has for layers. None: together they have too few.

    In proportion, by largest remainder, the first of equals first; what a member can't hold goes to whoever has the
    most room left.
    """
    capacity = [max(0, each // per_layer) for each in usable]
    if layers < len(usable) or sum(capacity) < layers or min(capacity, default=0) < 1:
        return None
    total = sum(usable)
    shares = [min(most, max(1, layers * each // total)) for most, each in zip(capacity, usable, strict=True)]
    while sum(shares) > layers:  # of the ones that each member has at least
        shares[max(range(len(shares)), key=lambda index: (shares[index], -index))] -= 1
    while sum(shares) < layers:
        free = [index for index in range(len(shares)) if shares[index] < capacity[index]]
        shares[max(free, key=lambda index: (layers * usable[index] - shares[index] * total, -index))] += 1
    return tuple(shares)


def can_divide(parts: int, embedding_length: int, kv_heads: Sequence[int]) -> bool:
    """Whether every matrix of a model can be cut into so many equal parts: its width and its heads must divide."""
    heads = [each for each in kv_heads if each]
    return embedding_length % parts == 0 and bool(heads) and all(each % parts == 0 for each in heads)
