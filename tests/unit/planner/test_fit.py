"""Stamped options, and the agent's check of stamped bytes."""

from collections.abc import Collection

from covey_api.engines import KvCacheType
from covey_api.instance import Costs
from covey_planner.fit.check import find_shortages, promise_left
from covey_planner.fit.options import choose_threads, stamp_options
from kit.builders import geometry


def explain(
    costs: tuple[Costs, ...], available: dict[str, int], promised: dict[str, int], shared: Collection[str]
) -> str:
    return "; ".join(text for _, text in find_shortages(costs, available, promised, shared))


def test_check_is_silent_when_every_pool_has_room() -> None:
    costs = (
        Costs(pool="Host", weights_bytes=100),
        Costs(pool="Gpu", weights_bytes=50),
        Costs(pool="Host", floor_bytes=1),
    )
    assert explain(costs, {"Host": 101, "Gpu": 50}, {}, ()) == ""


def test_check_names_each_short_pool_in_bytes() -> None:
    costs = (Costs(pool="Gpu", weights_bytes=50), Costs(pool="Host", weights_bytes=2**30, kv_cache_bytes=2**20))
    assert explain(costs, {"Host": 2**30, "Gpu": 49}, {}, ()) == (
        "pool 'Gpu' must have 50 B (50 bytes) free; got 49 B (49 bytes): 1 B (1 bytes) short; "
        "pool 'Host' must have 1.0 GiB (1074790400 bytes) free; got 1.0 GiB (1073741824 bytes): "
        "1.0 MiB (1048576 bytes) short"
    )


def test_check_never_sums_pools_up() -> None:
    assert "pool 'Gpu'" in explain((Costs(pool="Gpu", weights_bytes=50),), {"Host": 1000, "Gpu": 10}, {}, ())


def test_pool_without_a_reading_refuses() -> None:
    text = explain((Costs(pool="Gpu", weights_bytes=50),), {"Host": 1000}, {}, ())
    assert text == "pool 'Gpu' has no reading, and 50 B (50 bytes) must be free in it"


def test_stamp_in_the_pool_of_a_device_that_fills_the_hosts_memory_is_looked_for_there() -> None:
    costs = (Costs(pool="ROCm0", weights_bytes=50), Costs(pool="Host", floor_bytes=10))
    promised = {"ROCm0": 30, "Host": 5}
    assert explain(costs, {"Host": 95}, promised, {"ROCm0"}) == ""
    assert "pool 'Host' must have 60 B (60 bytes) free; got 59 B" in explain(costs, {"Host": 94}, promised, {"ROCm0"})


def test_options_leave_nothing_to_the_engine() -> None:
    options = stamp_options(geometry(), cpu_cores=2, context_tokens=4096, slots=3, kv_cache_type=KvCacheType.Q8_0)
    assert options.to_wire() == {
        "contextTokens": 4096,
        "slots": 3,
        "kvCacheType": "Q8_0",
        "kvLayout": "PerSlot",
        "batchTokens": 2048,
        "microBatchTokens": 512,
        "hostCacheMib": 0,
        "contextCheckpoints": 0,
        "threads": 1,
        "repack": True,
        "imageTokens": 0,
    }


def test_models_with_sliding_layers_get_two_checkpoints() -> None:
    sliding = geometry(sliding_window_tokens=512, sliding_layers=(0,))
    options = stamp_options(sliding, cpu_cores=2, context_tokens=4096, slots=3, kv_cache_type=KvCacheType.F16)
    assert options.context_checkpoints == 2


def test_threads_are_half_of_the_cores_between_one_and_sixteen() -> None:
    assert [choose_threads(cores) for cores in (0, 1, 2, 3, 4, 8, 32, 256)] == [1, 1, 1, 1, 2, 4, 16, 16]


def test_what_an_engine_that_loads_has_taken_already_counts_once() -> None:
    loading = (Costs(pool="Gpu", weights_bytes=30), Costs(pool="Host", weights_bytes=100))
    assert promise_left(loading, 0) == {"Gpu": 30, "Host": 100}
    assert promise_left(loading, 60) == {"Gpu": 30, "Host": 40}, "of a device nobody tells"
    assert promise_left(loading, 101) == {"Gpu": 30, "Host": 0}
    # 200 free before; 60 of its 100 are taken by now, so 140 are free, 40 of which it will still take.
    assert explain((Costs(weights_bytes=100),), {"Host": 140}, promise_left(loading, 60), ()) == ""
    assert explain((Costs(weights_bytes=101),), {"Host": 140}, promise_left(loading, 60), ()) != ""
