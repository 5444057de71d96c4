"""Run beside mlx-lm: of each config on stdin, the model that mlx-lm makes of it, with what its caches hold after a
prompt. On stdout, by family: names and shapes of the tensors, and bytes of what grows with the prompt and what doesn't.
"""

import json
import sys
from importlib import import_module
from typing import Any

TOKENS = 256
"""MLX's caches grow by as many."""


def _bytes_of(cache: Any) -> tuple[int, int]:
    if hasattr(cache, "caches"):
        caches: list[Any] = cache.caches
        parts = [_bytes_of(each) for each in caches]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    if hasattr(cache, "cache"):
        arrays: list[Any] = cache.cache
        return 0, sum(array.nbytes for array in arrays if array is not None)
    return cache.keys.nbytes + cache.values.nbytes, 0


def _measure(config: dict[str, Any]) -> dict[str, Any]:
    mx: Any = import_module("mlx.core")
    utils: Any = import_module("mlx_lm.utils")
    make_prompt_cache: Any = import_module("mlx_lm.models.cache").make_prompt_cache
    tree_flatten: Any = import_module("mlx.utils").tree_flatten
    made, arguments = utils._get_classes(config)
    model = made(arguments.from_dict(json.loads(json.dumps(config))))
    model.set_dtype(mx.float32)
    caches: list[Any] = make_prompt_cache(model)
    model(mx.array([[1] * TOKENS]), cache=caches)
    mx.eval([cache.state for cache in caches])
    held = [_bytes_of(cache) for cache in caches]
    return {
        "tensors": {name: list(array.shape) for name, array in tree_flatten(model.parameters())},
        "growing": sum(each[0] for each in held),
        "fixed": sum(each[1] for each in held),
    }


if __name__ == "__main__":
    core: Any = import_module("mlx.core")
    core.set_default_device(core.cpu)
    print(json.dumps({family: _measure(config) for family, config in json.load(sys.stdin).items()}))
