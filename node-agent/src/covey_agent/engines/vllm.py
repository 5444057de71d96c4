"""The description of `vllm serve`, from its own environment.

Its key goes by the environment (`VLLM_API_KEY`): it takes none from a file, and an argv is everybody's to read; the
environment of a process is its user's alone. What it would fetch or send by itself is turned off.
"""

import re

from covey_api.engines import Compute, EngineName, KvCacheType, Task
from covey_api.instance import Costs
from covey_api.reasons import FailureCause
from covey_api.runtime import Switch, VllmRuntime
from covey_planner.fit.vllm import PROCESS_BYTES

from covey_agent.engines.adapter import Counters, Description, Sign, Start
from covey_agent.engines.mlx import OFFLINE
from covey_agent.ports import AgentError, Launch

_CACHE_TYPES = {KvCacheType.F16: "auto", KvCacheType.Q8_0: "fp8"}
_TASKS = {Task.CHAT: (), Task.EMBEDDING: ("--runner", "pooling"), Task.RERANK: ("--runner", "pooling")}
_GIB = 2**30


def render(start: Start) -> Launch:
    spec, options = start.instance.spec, start.instance.spec.options
    if options.kv_cache_type not in _CACHE_TYPES:
        raise AgentError(
            FailureCause.NO_USABLE_ENGINE,
            f"engine 'Vllm' keeps keys and values as F16 or Q8_0; `kvCache.type` is '{options.kv_cache_type}'.",
        )
    kept_bytes = sum(costs.kv_cache_bytes for costs in spec.members[0].costs)
    environment = {
        **OFFLINE,
        "VLLM_API_KEY": start.key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": str(options.threads),
    }
    if spec.compute is Compute.CPU:
        if not _is_stamped_before_cards_were_hidden(spec.members[0].costs):
            # A build for cards would take one that the planner holds free: told of none, it says that it has no device.
            environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, -(-kept_bytes // _GIB)))
        memory: tuple[str, ...] = ()
    else:
        memory = ("--kv-cache-memory-bytes", str(kept_bytes))
    return start.launch(
        *("serve", str(start.weights), "--served-model-name", spec.model),
        *("--host", "127.0.0.1", "--port", str(start.port)),
        *("--max-model-len", str(options.context_tokens), "--max-num-seqs", str(options.slots)),
        *("--max-num-batched-tokens", str(max(options.batch_tokens, options.context_tokens))),
        *("--kv-cache-dtype", _CACHE_TYPES[options.kv_cache_type]),
        *memory,
        *_TASKS[spec.task],
        *render_runtime(spec.runtime.vllm),
        *(("--disable-log-requests",) if logs_requests(start.program.version) else ()),
        environment=environment,
    )


def logs_requests(version: str) -> bool:
    """Whether it writes clients' prompts into its output unless it is told not to: until 0.10 it did. Later versions
    don't, and end at an option that they no longer have."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < (0, 11)


def _is_stamped_before_cards_were_hidden(costs: tuple[Costs, ...]) -> bool:
    """Its process was priced as a small one's then. What ran on a card of the operator's goes on there."""
    return sum(each.floor_bytes * 100 // each.calibration_percent for each in costs) < PROCESS_BYTES


def render_runtime(runtime: VllmRuntime) -> tuple[str, ...]:
    """What the Model asks for, in the order of the list."""
    arguments: list[str] = []
    if runtime.enforce_eager is Switch.ON:
        arguments += ["--enforce-eager"]
    if runtime.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", runtime.tool_call_parser]
    if runtime.reasoning_parser is not None:
        arguments += ["--reasoning-parser", runtime.reasoning_parser]
    return tuple(arguments)


VLLM = Description(
    EngineName.VLLM,
    render,
    signs=(
        Sign(
            re.compile(r"OutOfMemoryError|out of memory|No available memory", re.IGNORECASE), FailureCause.OUT_OF_MEMORY
        ),
        Sign(
            re.compile(r"Address already in use"),
            FailureCause.PORT_TAKEN,
            "another process took the engine's port before it did: ",
            is_only_of_exits=True,
        ),
        Sign(re.compile(r"SafetensorError|is not a local folder|Invalid repository ID"), FailureCause.ARTIFACT_CORRUPT),
    ),
    counters=Counters(
        "/metrics", re.compile(r"^vllm:(?:prompt|generation)_tokens_total(?:\{.*\})? (\S+)", re.MULTILINE)
    ),
)
