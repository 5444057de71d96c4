"""Run beside mlx-lm: of each config on stdin, the model that mlx-lm makes of it, with what its caches hold after a
prompt. On stdout, by family: names and shapes of the tensors, and bytes of what grows with the prompt and what doesn't.
"""

import json
import sys
from typing import Any

TOKENS = 256
"""MLX's caches grow by as many."""


def _bytes_of(cache: Any) -> tuple[int, int]:
    if hasattr(cache, "caches"):
        parts = [_bytes_of(each) for each in cache.caches]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    if hasattr(cache, "cache"):
        return 0, sum(array.nbytes for array in cache.cache if array is not None)
    return cache.keys.nbytes + cache.values.nbytes, 0


def _measure(config: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import _get_classes

    made, arguments = _get_classes(config)
    model = made(arguments.from_dict(json.loads(json.dumps(config))))
    model.set_dtype(mx.float32)
    caches = make_prompt_cache(model)
    model(mx.array([[1] * TOKENS]), cache=caches)
    mx.eval([cache.state for cache in caches])
    held = [_bytes_of(cache) for cache in caches]
    return {
        "tensors": {name: list(array.shape) for name, array in tree_flatten(model.parameters())},
        "growing": sum(each[0] for each in held),
        "fixed": sum(each[1] for each in held),
    }


if __name__ == "__main__":
    import mlx.core

    mlx.core.set_default_device(mlx.core.cpu)
    print(json.dumps({family: _measure(config) for family, config in json.load(sys.stdin).items()}))
