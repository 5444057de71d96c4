"""Measure the real engine's memory and write the fixture and the table that the estimator is held against.

    PYTHONPATH=tests python tools/estimator_table.py --server PATH/llama-server --model PATH/model.gguf [--model …]

Each load starts the engine with the arguments that Covey gives it, runs one prompt that fills a micro batch, and reads
the engine's own buffer sizes and the peak of its resident memory. Made-up models (right geometry, weights of zeros)
widen the table to architectures that have no small file. One thread, one engine at a time.
"""

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_planner.fit.options import ASSUMED_ARGUMENTS
from covey_planner.geometry.gguf import HeaderIncomplete, parse_gguf_geometry
from kit.gguf import GgufFile, Shape, build_model
from kit.gguf_families import build_deepseek2, build_granite_hybrid, build_lfm2, build_mamba, build_mamba2
from kit.measured import DOCUMENT, FIXTURE, MIB, Load, render_loads, render_table, replace_table

READY_SECONDS = 120
PROMPT_SECONDS = 300
# More than one micro batch, so that every page of its buffers is touched.
PROMPT_TOKENS = 600

SWEEP = tuple(
    EngineOptions(context_tokens=window, slots=slots, kv_cache_type=kv_type)
    for window, slots, kv_type in (
        (512, 1, KvCacheType.F16),
        (512, 8, KvCacheType.F16),
        (1024, 4, KvCacheType.F16),
        (2048, 2, KvCacheType.F16),
        (4096, 1, KvCacheType.F16),
        (8192, 1, KvCacheType.F16),
        (8192, 4, KvCacheType.F16),
        (1024, 8, KvCacheType.Q8_0),
        (4096, 2, KvCacheType.Q8_0),
        (8192, 1, KvCacheType.Q8_0),
        (2048, 4, KvCacheType.Q4_0),
        (8192, 1, KvCacheType.Q4_0),
    )
)
SHORT_SWEEP = (EngineOptions(context_tokens=2048, slots=1), EngineOptions(context_tokens=2048, slots=4))
MADE_UP = {
    "llama, 1.5 B, Q4_0": Shape(
        layers=16, embedding=2048, feed_forward=8192, heads=32, kv_heads=8, vocabulary=128_256, context=131_072,
        tied=False, type="Q4_0",
    ),
    "qwen2, 0.5 B, Q8_0": Shape(
        "qwen2", layers=24, embedding=896, feed_forward=4864, heads=14, kv_heads=2, vocabulary=151_936,
        context=32_768,
    ),
    "qwen3, 0.3 B, Q6_K": Shape(
        "qwen3", layers=8, embedding=1024, feed_forward=3072, heads=16, kv_heads=8, head_length=128,
        vocabulary=151_936, context=32_768, type="Q6_K",
    ),
    "gemma3, 1 B, Q4_0": Shape(
        "gemma3", layers=26, embedding=1152, feed_forward=6912, heads=4, kv_heads=1, head_length=256,
        vocabulary=262_144, context=32_768, sliding_window=512, type="Q4_0",
    ),
    "qwen3moe, 0.4 B, Q8_0": Shape(
        "qwen3moe", layers=8, embedding=1024, feed_forward=384, heads=16, kv_heads=4, head_length=128,
        vocabulary=32_000, context=32_768, experts=32, experts_used=8, tied=False,
    ),
    "llama, 0.2 B, F16": Shape(
        layers=8, embedding=1024, feed_forward=2816, heads=16, kv_heads=16, vocabulary=32_000, context=32_768,
        tied=False, type="F16",
    ),
}  # fmt: skip

FAMILIES: dict[str, GgufFile] = {
    "mamba, 0.05 B, Q8_0": build_mamba(),
    "mamba2, 0.05 B, Q8_0": build_mamba2(),
    "lfm2, 0.1 B, Q8_0": build_lfm2(),
    "granitehybrid, 0.1 B, Q8_0": build_granite_hybrid(),
    "deepseek2, 0.2 B, Q8_0": build_deepseek2(),
}
# The engine's own layout for AMX aborts on this family's three-dimensional matrices.
PLAIN_LAYOUT = ("deepseek2",)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="the engine's program")
    parser.add_argument("--model", type=Path, action="append", required=True, help="a GGUF file; may be repeated")
    arguments = parser.parse_args()
    server: Path = arguments.server
    models: list[Path] = arguments.model
    loads = [measure(server, model, model.name.removesuffix(".gguf"), options) for model in models for options in SWEEP]
    with tempfile.TemporaryDirectory() as folder:
        for name, made in ({name: build_model(shape) for name, shape in MADE_UP.items()} | FAMILIES).items():
            model = made.write(Path(folder) / "made-up.gguf")
            loads += [measure(server, model, f"{name} (made up)", options) for options in SHORT_SWEEP]
    FIXTURE.write_text(render_loads(loads))
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text(), render_table(loads)))


def measure(server: Path, model: Path, name: str, options: EngineOptions) -> Load:
    """One load of one model."""
    extra = ("--no-repack",) if name.startswith(PLAIN_LAYOUT) else ()
    with (
        tempfile.NamedTemporaryFile("r+") as output,
        running(server, model, options, output.name, extra) as (process, port),
    ):
        prompt(port, min(PROMPT_TOKENS, options.context_tokens - 16))
        status = Path(f"/proc/{process.pid}/status").read_text()
        text = output.read()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    if peak is None:
        raise SystemExit(f"the kernel must report VmHWM of the engine; got {status!r}")
    load = Load(
        model=name,
        geometry=read_geometry(model),
        options=options,
        weights_bytes=buffers(text, "model"),
        kv_cache_bytes=buffers(text, "(?:KV|RS)"),
        compute_bytes=buffers(text, "compute") + buffers(text, "output"),
        peak_bytes=int(peak[1]) * 1024,
    )
    print(render_table([load]).splitlines()[-1], flush=True)
    return load


def read_geometry(model: Path) -> Geometry:
    """Geometry from a prefix that grows as the reader asks."""
    file_bytes, wanted = model.stat().st_size, 65_536
    while True:
        with model.open("rb") as file:
            prefix = file.read(wanted)
        try:
            return parse_gguf_geometry(prefix, file_bytes)
        except HeaderIncomplete as incomplete:
            wanted = incomplete.at_least_bytes


@contextmanager
def running(
    server: Path, model: Path, options: EngineOptions, output: str, extra: tuple[str, ...] = ()
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """The engine, ready on a port of its own; ended whatever happens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    kv_type = options.kv_cache_type.value.lower()
    argv = [
        str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *ASSUMED_ARGUMENTS, "-ngl", "0",
        "-c", str(options.context_tokens * options.slots), "-np", str(options.slots), "-t", str(options.threads),
        "-b", str(options.batch_tokens), "-ub", str(options.micro_batch_tokens), "-ctk", kv_type, "-ctv", kv_type,
        "--cache-ram", str(options.host_cache_mib), "--ctx-checkpoints", str(options.context_checkpoints), "-lv", "4",
        *extra,
    ]  # fmt: skip
    environment = os.environ | {"LD_LIBRARY_PATH": str(server.parent)}
    with open(output, "wb") as sink:
        process = subprocess.Popen(argv, stdout=sink, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_ready(process, port, output)
        yield process, port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


def wait_ready(process: subprocess.Popen[bytes], port: int, output: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the engine ended with {process.returncode}:\n{Path(output).read_text()[-2000:]}")
        try:
            if call(port, "GET", "/health", None, timeout_seconds=5) == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the engine was not ready within {READY_SECONDS} s")


def prompt(port: int, tokens: int) -> None:
    """One prompt of numbered tokens, one token back."""
    body = json.dumps({"prompt": [300 + index % 600 for index in range(tokens)], "n_predict": 1}).encode()
    status = call(port, "POST", "/completion", body, timeout_seconds=PROMPT_SECONDS)
    if status != 200:
        raise SystemExit(f"the engine must complete a prompt of {tokens} tokens; got status {status}")


def call(port: int, method: str, path: str, body: bytes | None, timeout_seconds: float) -> int:
    """Status of one request whose answer was read whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def buffers(text: str, kind: str) -> int:
    """Bytes of all buffers of a kind, as the engine printed them."""
    sizes = re.findall(rf"{kind} buffer size\s*=\s*([0-9.]+) MiB", text)
    if not sizes:
        raise SystemExit(f"the engine must print its {kind} buffer sizes; got:\n{text[-2000:]}")
    return round(sum(map(float, sizes)) * MIB)


if __name__ == "__main__":
    main()
