"""What a full cache costs, and how fast it is verified: one JSON line a figure.

CPU holds where wall times don't: it is what the kernel counted for this process, or for `sha256sum`.

Usage: `cache.py [BLOBS [MIB]]`.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from covey_agent.artifacts.cache import Cache, reference_key
from covey_agent.artifacts.entries import observe_entries
from covey_agent.artifacts.verifying import hash_file
from covey_api.model import ResolvedArtifact

BLOBS, MIB = 10_000, 512


def say(name: str, **figures: float) -> None:
    print(json.dumps({"measure": name, **{key: round(value, 3) for key, value in figures.items()}}), flush=True)


def fill(folder: Path, count: int) -> None:
    """As a cache is in which each of so many blobs is a model of a hub."""
    cache = Cache(folder)
    for number in range(count):
        sha256 = hashlib.sha256(str(number).encode()).hexdigest()
        source = f"hf://org/model#{number}.gguf"
        artifact = ResolvedArtifact(source=source, name=f"{number}.gguf", size_bytes=1, sha256=sha256)
        (cache.blobs / sha256).write_bytes(b"x")
        cache.stamps.path(sha256).write_text(f'{{"sizeBytes": 1, "modifiedNs": {number}, "inode": {number}}}')
        reference = json.dumps({"artifact": artifact.to_wire(), "blob": sha256})
        (folder / "refs" / f"{reference_key(artifact)}.json").write_text(reference)


def measure_start(folder: Path) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    cache = Cache(folder)
    say("start", blobs=len(cache.digests()), seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)
    began, cpu = time.perf_counter(), time.process_time()
    count = len(observe_entries(cache))
    say("list", entries=count, seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)


def measure_verification(path: Path, size_mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(2**20))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["sha256sum", str(path)], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cpu = time.process_time()
    hash_file(path, threading.Event())
    ours = time.process_time() - cpu
    say("verify", mb_per_cpu_second=size_mib * 1.048576 / ours, of_sha256sum=theirs / ours)


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    blobs, size_mib = (*given, *(BLOBS, MIB)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "cache", blobs)
        measure_start(Path(folder) / "cache")
        measure_verification(Path(folder) / "large", size_mib)


if __name__ == "__main__":
    main()
