"""Throw what libFuzzer makes of real headers at every reader of `covey_planner.geometry`.

    make fuzz SECONDS=300

A reader answers with a geometry, asks for more, or refuses. Anything else that it raises, an ask that would not help,
ten seconds for one input or a gigabyte of memory is a finding: the input is written to `crash-*` and belongs into
`tests/unit/planner/found/`, where a test reads it for ever. Needs `atheris` (dependency group `fuzz`).
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

# By name: it is in a dependency group of its own, and has no types.
atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports():
    from kit.checkpoints import build_checkpoint
    from kit.gguf import Shape, build_model, build_set
    from kit.gguf_families import build_deepseek2, build_granite_hybrid, build_lfm2, build_mamba2
    from kit.header_readers import read_input

LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=65536")
SMALL = Shape(layers=2, vocabulary=300, kv_heads=1, embedding=64, heads=2)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds()):
            (Path(folder) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:], folder], read_input)
        atheris.Fuzz()


def seeds() -> list[bytes]:
    """One of each kind; the first byte says for which reader of `kit.header_readers`."""
    small = {"embedding": 64, "vocabulary": 300}
    whole = [build_model(SMALL), build_mamba2(2, **small), build_lfm2(8, **small), build_granite_hybrid(4, **small)]
    whole.append(build_deepseek2(2, **small))
    checkpoint = build_checkpoint(SMALL)
    index = json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}).encode()
    return [
        *(b"\0" + file.header for file in whole),
        *(b"\1" + file.header for file in build_set(SMALL, 2)),
        b"\2" + checkpoint.files[0][0],
        b"\3" + checkpoint.config_text,
        b"\4" + index,
    ]


if __name__ == "__main__":
    main()
