"""The description of llama.cpp's server: how it is started, what its last words mean.

Every option that costs memory or context is rendered from the Instance's stamp; what is left to the program's defaults
costs neither. Its key goes by a 0600 file, since an argv is everybody's to read. Its defaults that would hurt:

- `--fit on` changes what it is told until it fits; here the planner fits, and a start that doesn't fit must fail.
- an unset `-np` is four slots on one unified cache, where over-admission ends every stream at once: each slot has its
  own window, so `-c` is the window times the slots.
- `--cache-ram` is 8 GiB of host memory and `--ctx-checkpoints` 32 a slot.
- each kept-alive connection holds one HTTP thread, and a request beyond them waits for seconds.
"""

import re

from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, KvLayout, Task
from covey_api.instance import Instance, MemberRole
from covey_api.reasons import FailureCause
from covey_api.runtime import LlamaServerRuntime, Numa, ReasoningFormat, Speculation, Switch
from covey_planner.fit.options import ASSUMED_ARGUMENTS

from covey_agent.engines.adapter import Counters, Description, Sign, Start
from covey_agent.engines.features import FIT, has_fit, require_features
from covey_agent.ports import Launch

# Per slot: one request of each of two gateways and one kept-alive connection beside it; the rest for probes.
HTTP_THREADS_PER_SLOT = 4
SPARE_HTTP_THREADS = 8
# All layers, whatever their number.
ALL_LAYERS = "999"

_CACHE_TYPES = {KvCacheType.F16: "f16", KvCacheType.Q8_0: "q8_0", KvCacheType.Q4_0: "q4_0"}
_LAYOUTS = {KvLayout.PER_SLOT: "--no-kv-unified", KvLayout.UNIFIED: "--kv-unified"}
_NUMA = {Numa.DISTRIBUTE: "distribute", Numa.ISOLATE: "isolate", Numa.NUMACTL: "numactl"}
_REASONING = {ReasoningFormat.AUTO: "auto", ReasoningFormat.NONE: "none", ReasoningFormat.DEEPSEEK: "deepseek"}
_SPECULATIONS = {Speculation.NGRAM_SIMPLE: "ngram-simple"}
# A vector is made of a whole text at once: the batch must hold the longest one.
_TASKS = {Task.CHAT: (), Task.EMBEDDING: ("--embeddings",), Task.RERANK: ("--reranking",)}

OUT_OF_MEMORY = re.compile(
    r"insufficient memory|unable to allocate|failed to allocate|std::bad_alloc|out of (device |host )?memory"
    r"|ErrorOutOf(Device|Host)Memory|cudaMalloc failed",
    re.IGNORECASE,
)
# What it says of whatever ends a load, also of a driver; that is no fault of the file's.
_OF_DRIVERS = r"\b(vk::|CUDA error|HIP error|ROCm error)"
BAD_MODEL = re.compile(
    r"invalid magic|failed to read (key-value pairs|tensor)|failed to open GGUF"
    rf"|error loading model(?!.*{_OF_DRIVERS})"
)
UNKNOWN_MODEL = re.compile(r"unknown model architecture")


def render(start: Start) -> Launch:
    spec, options = start.instance.spec, start.instance.spec.options
    cache_type = _CACHE_TYPES[options.kv_cache_type]
    launch = start.launch(
        *("-m", str(start.weights), "--alias", spec.model),
        *("--host", "127.0.0.1", "--port", str(start.port), "--api-key-file", str(start.key_file)),
        *("-c", str(render_cells(start.instance)), "-np", str(options.slots)),
        *("-b", str(options.batch_tokens), "-ub", str(options.micro_batch_tokens)),
        *("-ctk", cache_type, "-ctv", cache_type),
        *render_assumed(start),
        *("--cache-ram", str(options.host_cache_mib), "--ctx-checkpoints", str(options.context_checkpoints)),
        *("-t", str(options.threads), "-tb", str(options.threads)),
        *("--threads-http", str(HTTP_THREADS_PER_SLOT * options.slots + SPARE_HTTP_THREADS)),
        # Before the devices: it is what makes them known.
        *(("--rpc", ",".join(f"127.0.0.1:{port}" for port in start.donors)) if start.donors else ()),
        *render_placement(start.instance),
        *(() if options.repack else ("--no-repack",)),
        *_TASKS[spec.task],
        *render_runtime(spec.runtime.llama_server, drafts=CompanionRole.DRAFT in start.companions),
        *render_projector(start),
        *render_draft(start),
        *("--no-context-shift", "--offline", "--no-webui", "--no-slots", "--metrics"),
        environment=_projector_environment(start) | _donors_environment(start),
    )
    require_features(launch.argv, start.program)
    return launch


def render_assumed(start: Start) -> tuple[str, ...]:
    """What the estimator takes for granted."""
    layout = _LAYOUTS[start.instance.spec.options.kv_layout]
    arguments = tuple(layout if each == "--no-kv-unified" else each for each in ASSUMED_ARGUMENTS)
    if has_fit(start.program):
        return arguments
    at = arguments.index(FIT)
    return arguments[:at] + arguments[at + 2 :]


def render_cells(instance: Instance) -> int:
    """Cells of the whole cache: each slot its window, or one window that all share."""
    options = instance.spec.options
    return options.context_tokens * (options.slots if options.kv_layout is KvLayout.PER_SLOT else 1)


def render_placement(instance: Instance) -> tuple[str, ...]:
    """Where the layers go: the CPU, or the device whose pool was stamped (pools have the engine's names of devices)."""
    if instance.spec.members[0].role is MemberRole.DRIVER:
        return render_donors(instance)
    if instance.spec.compute is Compute.CPU:
        # `none` also keeps a driver that is there from taking memory of a device.
        return "-ngl", "0", "-dev", "none"
    costs = {each.pool: each for each in instance.spec.members[0].costs}
    devices = _devices(instance)
    chosen = ("-dev", ",".join(devices)) if devices else ()
    return "-ngl", ALL_LAYERS, *chosen, *_render_split([costs[device].layers for device in devices])


def render_donors(instance: Instance) -> tuple[str, ...]:
    """Its own layers first, as they are stamped; then each donor's, the output with the last.

    llama.cpp counts what goes to devices from the end, and names other nodes in the order of `--rpc`.
    """
    own, *donors = instance.spec.members
    names, layers = [f"RPC{index}" for index in range(len(donors))], [each.layers for each in donors]
    if instance.spec.compute is Compute.CPU:
        return "-ngl", str(sum(layers) + 1), "-dev", ",".join(names), *_render_split(layers)
    devices = _devices(instance)
    own_layers = {each.pool: each.layers for each in own.costs}
    layers = [*(own_layers[device] for device in devices), *layers]
    return "-ngl", ALL_LAYERS, "-dev", ",".join((*devices, *names)), *_render_split(layers)


def _render_split(layers: list[int]) -> tuple[str, ...]:
    """As stamped: by itself the engine would share by what it finds free. The output counts as one layer, the last."""
    if len(layers) < 2 or not all(layers):
        return ()
    return "--split-mode", "layer", "--tensor-split", ",".join(str(each) for each in (*layers[:-1], layers[-1] + 1))


def render_projector(start: Start) -> tuple[str, ...]:
    """What makes tokens of images, where the layers are; an image of any size becomes as many as are stamped."""
    path = start.companions.get(CompanionRole.PROJECTOR)
    if path is None:
        return ()
    place = ("--no-mmproj-offload",) if start.instance.spec.compute is Compute.CPU else ()
    return "--mmproj", str(path), *place, "--image-max-tokens", str(start.instance.spec.options.image_tokens)


def _projector_environment(start: Start) -> dict[str, str]:
    """Its device: no argument names it, and by itself it takes the first of the machine."""
    devices = _devices(start.instance)
    return {"MTMD_BACKEND_DEVICE": devices[0]} if CompanionRole.PROJECTOR in start.companions and devices else {}


def _donors_environment(start: Start) -> dict[str, str]:
    """By itself it aborts when a donor is gone, and first asks a debugger for its stack, for seconds."""
    return {"GGML_NO_BACKTRACE": "1"} if start.donors else {}


def render_draft(start: Start) -> tuple[str, ...]:
    """A model that guesses, on the first device of the one that checks; its cache is F16, as it was counted."""
    path = start.companions.get(CompanionRole.DRAFT)
    if path is None:
        return ()
    spec, devices = start.instance.spec, _devices(start.instance)
    on_cpu = spec.compute is Compute.CPU
    threads = str(spec.options.threads)
    return (
        *("--model-draft", str(path), "-ctkd", "f16", "-ctvd", "f16", "-td", threads, "-tbd", threads),
        *(("-ngld", "0", "-devd", "none") if on_cpu else ("-ngld", ALL_LAYERS)),
        *(("-devd", devices[0]) if devices and not on_cpu else ()),
    )


def _devices(instance: Instance) -> list[str]:
    """Pools of its own devices, which have the engine's names of them."""
    return sorted({each.pool for each in instance.spec.members[0].costs if each.pool != HOST_POOL})


def render_runtime(runtime: LlamaServerRuntime, *, drafts: bool = False) -> tuple[str, ...]:
    """What the Model asks for, in the order of the list. `drafts`: a draft model guesses too, which it must be told."""
    arguments: list[str] = []
    if runtime.numa is not None:
        arguments += ["--numa", _NUMA[runtime.numa]]
    if runtime.mlock is Switch.ON:
        arguments += ["--mlock"]
    if runtime.poll_percent is not None:
        arguments += ["--poll", str(runtime.poll_percent)]
    if runtime.cache_reuse_tokens is not None:
        arguments += ["--cache-reuse", str(runtime.cache_reuse_tokens)]
    if runtime.reasoning_format is not None:
        arguments += ["--reasoning-format", _REASONING[runtime.reasoning_format]]
    guesses = [_SPECULATIONS[runtime.speculation]] if runtime.speculation is not None else []
    guesses += ["draft-simple"] if drafts else []
    if guesses:
        arguments += ["--spec-type", ",".join(guesses)]
    return tuple(arguments)


LLAMA_SERVER = Description(
    engine=EngineName.LLAMA_SERVER,
    render=render,
    signs=(
        Sign(OUT_OF_MEMORY, FailureCause.OUT_OF_MEMORY),
        Sign(
            # The second is a donor's, `ggml-rpc-server`, which ends with 0 then.
            re.compile(r"couldn't bind HTTP server socket|^Failed to create server socket", re.MULTILINE),
            FailureCause.PORT_TAKEN,
            "another process took the engine's port before it did: ",
            is_only_of_exits=True,
        ),
        Sign(
            UNKNOWN_MODEL,
            FailureCause.NO_USABLE_ENGINE,
            "this build of the engine doesn't know the model's kind; give a newer one in the Node's `spec.engines`: ",
            is_only_of_exits=True,
        ),
        Sign(
            BAD_MODEL,
            FailureCause.ARTIFACT_CORRUPT,
            "the engine can't load the model's file: ",
            is_only_of_exits=True,
        ),
    ),
    # A refused request.
    clients_words=re.compile(r"^.*: got exception: .*\n?", re.MULTILINE),
    # Told by the thread that generates, and by no other.
    counters=Counters(
        "/metrics",
        re.compile(r"^llamacpp:n_decode_total (\S+)", re.MULTILINE),
        re.compile(r"^llamacpp:requests_(?:processing|deferred) ([0-9.]+)$", re.MULTILINE),
    ),
    loads_companions=True,
    takes_donors=True,
)
