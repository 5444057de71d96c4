"""The description of llama-cpp-python under our server (`servers.llama_cpp_server`): one sequence at a time."""

import re

from covey_api.engines import Compute, EngineName
from covey_api.reasons import FailureCause
from covey_api.runtime import Switch

from covey_agent.engines.adapter import Counters, Description, Sign, Start
from covey_agent.engines.llama_server import OUT_OF_MEMORY
from covey_agent.engines.python_engine import SIGNS, render_common
from covey_agent.ports import Launch


def render(start: Start) -> Launch:
    spec = start.instance.spec
    return start.launch(
        *render_common(start),
        *(() if spec.compute is Compute.CPU else ("--accelerator",)),
        *(("--mlock",) if spec.runtime.llama_cpp.mlock is Switch.ON else ()),
        environment={"OMP_NUM_THREADS": str(spec.options.threads)},
    )


LLAMA_CPP = Description(
    EngineName.LLAMA_CPP,
    render,
    # llama.cpp's own words come first: the library raises one error for all that keeps a file from being loaded.
    (Sign(OUT_OF_MEMORY, FailureCause.OUT_OF_MEMORY), *SIGNS),
    counters=Counters(
        "/metrics",
        re.compile(r"^covey_engine_work_total (\S+)", re.MULTILINE),
        re.compile(r"^covey_engine_requests ([0-9]+)$", re.MULTILINE),
    ),
)
