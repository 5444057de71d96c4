"""The description of mlx-lm's server under our launcher (`servers.mlx_server`).

It must never look at a hub: what it loads is the folder that it is given, and names in requests load nothing.

A rank of a ring is told of the others by mlx's own file of hosts. It dials the next one alone, at a port of its own
loopback that its keeper carries there; the other entries name nobody.
"""

import json
import re
from dataclasses import replace

from covey_api.companion import CompanionRole
from covey_api.engines import EngineName
from covey_api.instance import Instance
from covey_api.runtime import Switch

from covey_agent.engines.adapter import Counters, Description, Start
from covey_agent.engines.python_engine import SIGNS, render_common
from covey_agent.ports import Launch, Ring

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


HOSTS_FILE = "ring.json"
# Of a rank that this one never dials: nobody listens at port 1.
NOBODY = "127.0.0.1:1"
# A step reads a part of each slot's prompt at most, and so many tokens of them a second wherever a ring is of any use.
STEP_TOKENS_PER_SECOND = 10
LEAST_STEP_SECONDS = 60


def render(start: Start) -> Launch:
    spec = start.instance.spec
    # All slots at the whole window, and what is stamped for earlier prompts beside them.
    kept = sum(costs.kv_cache_bytes + costs.host_cache_bytes for costs in spec.members[0].costs)
    threads = str(spec.options.threads)
    ring, draft = start.ring, start.companions.get(CompanionRole.DRAFT)
    launch = start.launch(
        *render_common(start),
        *("--cache-bytes", str(kept)),
        *(("--default-chat-template",) if spec.runtime.mlx.default_chat_template is Switch.ON else ()),
        *(("--draft", str(draft)) if draft else ()),
        *(render_rank(start.instance, ring) if ring else ()),
        environment={**OFFLINE, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        | ({"MLX_RANK": str(ring.rank), "MLX_HOSTFILE": str(start.folder / HOSTS_FILE)} if ring else {}),
    )
    if ring is None:
        return launch
    return replace(launch, files=(*launch.files, (HOSTS_FILE, render_hosts(len(spec.members), ring))))


def render_rank(instance: Instance, ring: Ring) -> tuple[str, ...]:
    """Layers as they are stamped, by rank; of a model that is cut across its layers every rank has all, in part."""
    layers = [member.layers for member in instance.spec.members]
    split = ("--layers", ",".join(map(str, layers))) if is_pipeline(instance) else ()
    return "--rank", str(ring.rank), "--step-seconds", str(step_seconds(instance)), *split


def step_seconds(instance: Instance) -> int:
    """How long the longest step of a healthy ring may take."""
    options = instance.spec.options
    return max(LEAST_STEP_SECONDS, options.slots * options.micro_batch_tokens // STEP_TOKENS_PER_SECOND)


def is_pipeline(instance: Instance) -> bool:
    """Whether each rank has layers of its own: stamped of a pipeline alone."""
    return all(member.layers for member in instance.spec.members)


def render_hosts(count: int, ring: Ring) -> str:
    hosts = [[NOBODY] for _ in range(count)]
    hosts[(ring.rank + 1) % count] = [f"127.0.0.1:{ring.next_port}"]
    hosts[ring.rank] = [f"127.0.0.1:{ring.port}"]
    return json.dumps(hosts)


MLX = Description(
    EngineName.MLX,
    render,
    SIGNS,
    counters=Counters("/metrics", re.compile(r"^covey_engine_work_total (\S+)", re.MULTILINE)),
    takes_ranks=True,
)
