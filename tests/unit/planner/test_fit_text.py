"""`covey fit`: the estimator's own numbers, per kind of machine, and the largest window that a memory allows."""

from dataclasses import replace
from typing import Any

import pytest
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Task
from covey_planner.fit.estimate import estimate_costs
from covey_planner.fit.options import stamp_options
from covey_planner.text.fit import DEVICE_POOL, FitQuestion, fit_data, fit_lanes, render_fit
from hypothesis import given
from hypothesis import strategies as st
from kit.builders import geometry, lane

MIB = 2**20


def question(host_bytes: int | None = None, device_bytes: int | None = None, window: int | None = 4096) -> FitQuestion:
    given_bytes = {HOST_POOL: host_bytes, DEVICE_POOL: device_bytes}
    memory = {pool: count for pool, count in given_bytes.items() if count is not None}
    return FitQuestion("model/m", geometry(), window, 4, KvCacheType.F16, memory)


def test_processor_costs_are_what_the_planner_reserves() -> None:
    processor = fit_lanes(question())[0]
    options = stamp_options(geometry(), cpu_cores=1, context_tokens=4096, slots=4, kv_cache_type=KvCacheType.F16)
    assert processor.compute is Compute.CPU
    assert processor.costs == estimate_costs(geometry(), lane(digest="a" * 64), options, 0)


def test_pools_are_told_apart_and_never_summed() -> None:
    device = fit_lanes(question())[1]
    assert [costs.pool for costs in device.costs] == [DEVICE_POOL, HOST_POOL]
    data = fit_data(question())
    assert "totalBytes" not in data["lanes"][1]
    assert [pool["totalBytes"] for pool in data["lanes"][1]["pools"]] == [costs.total_bytes for costs in device.costs]


@given(st.integers(min_value=0, max_value=4096 * MIB))
def test_ceiling_fits_and_one_step_more_does_not(host_bytes: int) -> None:
    found = fit_lanes(question(host_bytes))[0]
    assert found.ceiling_tokens is not None
    if found.ceiling_tokens == 0:
        assert "does not fit" in render_fit(question(host_bytes))
        return
    at_ceiling = fit_lanes(question(window=found.ceiling_tokens))[0].costs[0].total_bytes
    assert at_ceiling <= host_bytes
    if found.ceiling_tokens < geometry().context_tokens:
        assert fit_lanes(question(window=found.ceiling_tokens + 256))[0].costs[0].total_bytes > host_bytes


def test_ceiling_is_not_told_where_no_memory_was_given() -> None:
    assert fit_lanes(question(host_bytes=2**40))[1].ceiling_tokens is None
    assert "how much memory pool Device has was not said" in render_fit(question(host_bytes=2**40))
    assert fit_lanes(question(2**40, 2**40))[1].ceiling_tokens == geometry().context_tokens


def test_window_is_the_models_own_unless_another_is_asked_for() -> None:
    assert fit_data(question(window=None))["contextTokens"] == geometry().context_tokens


def test_apple_silicon_has_its_own_part_of_the_hosts_memory() -> None:
    plain = question(2**31, window=None)
    processor, _, apple = fit_lanes(replace(plain, metal_bytes=200 * MIB))
    assert processor.ceiling_tokens == geometry().context_tokens
    assert apple.ceiling_tokens == 0
    assert "does not fit into 200.0 MiB of pool Host" in render_fit(replace(plain, metal_bytes=200 * MIB))
    assert fit_lanes(plain)[2].ceiling_tokens == geometry().context_tokens


def test_vllm_is_told_as_it_is_priced() -> None:
    asked = replace(question(16 * 1024 * MIB), engines=(EngineName.VLLM,))
    (found,) = fit_lanes(asked)
    options = stamp_options(geometry(), cpu_cores=1, context_tokens=4096, slots=4, kv_cache_type=KvCacheType.F16)
    assert found.costs == estimate_costs(geometry(), lane(engine=EngineName.VLLM), options, 0)
    assert "Vllm on a processor (Cpu):" in render_fit(asked)


@pytest.mark.parametrize(
    ("engine", "changes", "words"),
    [
        (EngineName.VLLM, {"kv_cache_type": KvCacheType.Q4_0}, "Vllm: Vllm keeps keys and values as F16 or Q8_0"),
        (EngineName.MLX, {"task": Task.RERANK}, "Mlx: Mlx does Chat, not Rerank"),
    ],
)
def test_lane_that_the_planner_leaves_out_is_not_told(engine: EngineName, changes: dict[str, Any], words: str) -> None:
    asked = replace(question(), engines=(engine,), **changes)
    assert fit_lanes(asked) == ()
    assert words in render_fit(asked)
