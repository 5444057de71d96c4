"""What the engines under servers of ours share: options from the stamp, and the one line in which a server says why."""

import re

from covey_api.reasons import FailureCause

from covey_agent.engines.adapter import Sign, Start
from covey_agent.engines.servers.web import FAILURE


def _says(cause: FailureCause, prefix: str = "", of: str = "") -> Sign:
    return Sign(re.compile(rf"^{FAILURE}: {cause.value}: {of}", re.MULTILINE), cause, prefix)


SIGNS = (
    Sign(
        re.compile(r"std::bad_alloc|\[malloc\]|kIOGPUCommandBufferCallbackErrorOutOfMemory"), FailureCause.OUT_OF_MEMORY
    ),
    _says(FailureCause.OUT_OF_MEMORY),
    _says(FailureCause.NO_USABLE_ENGINE, "its packages are not whole: ", "(ImportError|ModuleNotFoundError)"),
    _says(FailureCause.NO_USABLE_ENGINE),
    _says(FailureCause.ARTIFACT_CORRUPT, "the engine can't load the model: "),
    Sign(
        re.compile(r"Address already in use"),
        FailureCause.PORT_TAKEN,
        "another process took the engine's port before it did: ",
        is_only_of_exits=True,
    ),
)


def render_common(start: Start) -> tuple[str, ...]:
    """What every server of ours takes (`servers.options`)."""
    spec, options = start.instance.spec, start.instance.spec.options
    return (
        *("--model", str(start.weights), "--name", spec.model),
        *("--port", str(start.port), "--key-file", str(start.key_file)),
        *("--window", str(options.context_tokens), "--slots", str(options.slots)),
        *("--batch", str(options.batch_tokens), "--micro-batch", str(options.micro_batch_tokens)),
        *("--threads", str(options.threads), "--cache-type", options.kv_cache_type.value),
    )
