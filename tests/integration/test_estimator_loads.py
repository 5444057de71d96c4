"""A few of the documented loads again, on the real engine: its own words and the kernel's against the estimate.

The whole table takes half an hour (tools/estimator_table.py); these cover one and many slots, two cache types, and an
engine that is used in all its slots at once.
"""

from pathlib import Path

import pytest
from covey_agent.facts.usage import observe_used_bytes
from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_planner.fit.options import stamp_options
from kit.loading import Loadable, measure, prompt, read_geometry, running
from kit.measured import MIB
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# The engine prints its buffers to a hundredth of a MiB, and there are up to three of a kind.
PRINTED_BYTES = MIB // 100 * 3


def stamped(window: int, slots: int, kind: KvCacheType) -> EngineOptions:
    geometry = read_geometry(provide_real_parts().model)
    return stamp_options(geometry, cpu_cores=2, context_tokens=window, slots=slots, kv_cache_type=kind)


@pytest.mark.parametrize(
    ("window", "slots", "kind"),
    [(512, 1, KvCacheType.F16), (1024, 3, KvCacheType.Q8_0), (8192, 1, KvCacheType.Q4_0)],
)
def test_engine_takes_what_is_estimated_and_little_less(window: int, slots: int, kind: KvCacheType) -> None:
    parts = provide_real_parts()
    load = measure(parts.program, Loadable("smollm2", parts.model), stamped(window, slots, kind))
    costs = load.estimate()
    for estimated, reported in (
        (costs.weights_bytes, load.weights_bytes),
        (costs.kv_cache_bytes, load.kv_cache_bytes),
        (costs.compute_bytes, load.compute_bytes),
    ):
        assert reported - PRINTED_BYTES <= estimated <= 1.15 * reported
    assert load.peak_bytes <= costs.total_bytes <= 1.15 * load.peak_bytes + 64 * MIB


def test_agent_sees_the_peak_that_the_estimate_covers(tmp_path: Path) -> None:
    parts = provide_real_parts()
    model, options = Loadable("smollm2", parts.model), stamped(1024, 1, KvCacheType.F16)
    with running(parts.program, model, options, tmp_path) as (process, port):
        before = observe_used_bytes(Path("/"), process.pid)
        prompt(port, model, 900)
        used = observe_used_bytes(Path("/"), process.pid)
    assert before > 100 * MIB
    assert used >= before
    # The parent is this test, not a keeper: its own share is in what is seen.
    assert used > 150 * MIB
