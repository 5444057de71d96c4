"""Tells how far a load of mlx-lm's is: it lays all tensors out before it reads any, and reads them all at once.

Here they are read one after the other, in the same thread, and what is read is told in a line for each hundredth.
"""

import importlib
import sys
from typing import Any

from covey_agent.engines.servers.web import LOADED


def tell_loads(library: Any) -> None:
    """mlx-lm's `load`, from now on: of a model, then of its draft, whose bytes are added."""
    core, utils = importlib.import_module("mlx.core"), importlib.import_module("mlx.utils")
    load, loaded_bytes = library.load, 0

    def tell(*arguments: Any, **named: Any) -> Any:
        nonlocal loaded_bytes
        found = load(*arguments, **named, lazy=True)
        tensors = [tensor for _, tensor in utils.tree_flatten(found[0].parameters())]
        step = max(1, sum(tensor.nbytes for tensor in tensors) // 100)
        told = loaded_bytes
        for tensor in tensors:
            core.eval(tensor)
            loaded_bytes += tensor.nbytes
            if loaded_bytes - told >= step:
                told = loaded_bytes
                print(f"{LOADED} {told}", file=sys.stderr, flush=True)
        return found

    library.load = tell
