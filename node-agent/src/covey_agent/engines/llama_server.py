"""The adapter of llama.cpp's server: how it is started, when it is ready, what its last words mean.

Every option that costs memory or context is rendered from the Instance's stamp; what is left to the program's defaults
costs neither. Its key goes by a 0600 file, since an argv is everybody's to read. Its defaults that would hurt:

- `--fit on` changes what it is told until it fits; here the planner fits, and a start that doesn't fit must fail.
- an unset `-np` is four slots on one unified cache, where over-admission ends every stream at once: each slot has its
  own window, so `-c` is the window times the slots.
- `--cache-ram` is 8 GiB of host memory and `--ctx-checkpoints` 32 a slot.
- each kept-alive connection holds one HTTP thread, and a request beyond them waits for seconds.
"""

import asyncio
import re
import signal
from pathlib import Path

import httpx
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType
from covey_api.instance import Instance
from covey_api.reasons import FailureCause
from covey_planner.fit.options import ASSUMED_ARGUMENTS

from covey_agent.engines.libraries import explain_missing_library
from covey_agent.ports import EngineProgram, Launch

KEY_FILE = "engine.key"
# Per slot: one request of each of two gateways and one kept-alive connection beside it; the rest for probes.
HTTP_THREADS_PER_SLOT = 4
SPARE_HTTP_THREADS = 8
# One try of a probe: a token of a large model on a slow CPU, after its first pass over the weights.
PROBE_SECONDS = 30.0
# All layers, whatever their number.
ALL_LAYERS = "999"

_CACHE_TYPES = {KvCacheType.F16: "f16", KvCacheType.Q8_0: "q8_0", KvCacheType.Q4_0: "q4_0"}
_OUT_OF_MEMORY = re.compile(
    r"insufficient memory|unable to allocate|failed to allocate|std::bad_alloc|out of (device |host )?memory"
    r"|ErrorOutOfDeviceMemory|cudaMalloc failed",
    re.IGNORECASE,
)
_BAD_MODEL = re.compile(
    r"invalid magic|failed to read (key-value pairs|tensor)|error loading model|failed to open GGUF|unknown model arch"
)
_BIND = re.compile(r"couldn't bind HTTP server socket")
# A refused request, with words of a client's: they are no cause of an exit, and no status may show them.
_REFUSED_REQUEST = re.compile(r"^.*: got exception: .*\n?", re.MULTILINE)
# Longest line of output that is quoted in a message.
_MAX_QUOTE = 300


class LlamaServer:
    """`http`: a client without proxies, for loopback."""

    engine = EngineName.LLAMA_SERVER

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def render(
        self, program: EngineProgram, instance: Instance, weights: Path, folder: Path, port: int, key: str
    ) -> Launch:
        spec, options = instance.spec, instance.spec.options
        cache_type = _CACHE_TYPES[options.kv_cache_type]
        argv = [
            *(str(program.path), "-m", str(weights), "--alias", spec.model),
            *("--host", "127.0.0.1", "--port", str(port), "--api-key-file", str(folder / KEY_FILE)),
            *("-c", str(options.context_tokens * options.slots), "-np", str(options.slots)),
            *("-b", str(options.batch_tokens), "-ub", str(options.micro_batch_tokens)),
            *("-ctk", cache_type, "-ctv", cache_type),
            *ASSUMED_ARGUMENTS,
            *("--cache-ram", str(options.host_cache_mib), "--ctx-checkpoints", str(options.context_checkpoints)),
            *("-t", str(options.threads), "-tb", str(options.threads)),
            *("--threads-http", str(HTTP_THREADS_PER_SLOT * options.slots + SPARE_HTTP_THREADS)),
            *render_placement(instance),
            *(() if options.repack else ("--no-repack",)),
            *("--no-context-shift", "--offline", "--no-webui", "--no-slots"),
        ]
        return Launch(tuple(argv), dict(program.environment), ((KEY_FILE, f"{key}\n"),))

    async def is_ready(self, port: int, key: str) -> bool:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "cache_prompt": False}
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await self._http.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json=body,
                    headers={"authorization": f"Bearer {key}"},
                    timeout=PROBE_SECONDS,
                )
            return answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] >= 1
        except (httpx.HTTPError, TimeoutError, ValueError, KeyError, TypeError):
            return False

    def classify_exit(self, status: int, tail: str) -> tuple[FailureCause, str]:
        tail = _REFUSED_REQUEST.sub("", tail)
        if missing := explain_missing_library("the engine", tail):
            return FailureCause.MISSING_LIBRARY, missing
        words = f"{render_status(status)}{quote_last_error(tail)}"
        if _OUT_OF_MEMORY.search(tail):
            return FailureCause.OUT_OF_MEMORY, words
        if status < 0:
            return FailureCause.KILLED, words
        if _BIND.search(tail):
            return FailureCause.EXITED, f"another process took the engine's port before it did: {words}"
        if _BAD_MODEL.search(tail):
            return FailureCause.ARTIFACT_CORRUPT, f"the engine can't load the model's file: {words}"
        return FailureCause.EXITED, words


def render_placement(instance: Instance) -> tuple[str, ...]:
    """Where the layers go: the CPU, or the device whose pool was stamped (pools have the engine's names of devices)."""
    if instance.spec.compute is Compute.CPU:
        # `none` also keeps a driver that is there from taking memory of a device.
        return "-ngl", "0", "-dev", "none"
    devices = sorted({costs.pool for costs in instance.spec.members[0].costs if costs.pool != HOST_POOL})
    chosen = ("-dev", ",".join(devices)) if devices else ()
    return "-ngl", ALL_LAYERS, *chosen


def render_status(status: int) -> str:
    """`ended by SIGKILL`, `exited with code 1`."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def quote_last_error(tail: str) -> str:
    """The first error line of the last words, as the cause comes before its consequences; empty if there is none."""
    lines = [line.strip() for line in tail.splitlines() if re.search(r" E |error|failed|abort", line, re.IGNORECASE)]
    if not lines:
        return ""
    return f": {re.sub(r'^[0-9.]+ [A-Z] ', '', lines[0])[:_MAX_QUOTE]}"
