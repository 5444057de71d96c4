"""The description of mlx-lm's server under our launcher (`servers.mlx_server`).

It must never look at a hub: what it loads is the folder that it is given, and names in requests load nothing.
"""

from covey_api.engines import EngineName
from covey_api.runtime import Switch

from covey_agent.engines.adapter import Description, Start
from covey_agent.engines.python_engine import SIGNS, render_common
from covey_agent.ports import Launch

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def render(start: Start) -> Launch:
    spec = start.instance.spec
    # All slots at the whole window, and what is stamped for earlier prompts beside them.
    kept = sum(costs.kv_cache_bytes + costs.host_cache_bytes for costs in spec.members[0].costs)
    threads = str(spec.options.threads)
    return start.launch(
        *render_common(start),
        *("--cache-bytes", str(kept)),
        *(("--default-chat-template",) if spec.runtime.mlx.default_chat_template is Switch.ON else ()),
        environment={**OFFLINE, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
    )


MLX = Description(EngineName.MLX, render, SIGNS)
