"""The factor that earlier loads give: raised at once, lowered after five, within its bounds, on what is computed."""

from covey_api.engines import Compute, EngineName
from covey_api.instance import Costs, EngineOptions
from covey_planner.fit.calibration import Calibration, as_learned, observe_end, observe_use
from covey_planner.fit.estimate import cost_formulas
from hypothesis import given
from hypothesis import strategies as st
from kit.builders import geometry, lane

COSTS = Costs(weights_bytes=600, kv_cache_bytes=200, compute_bytes=100, floor_bytes=100)
PERCENTS = st.integers(85, 150)


def ended(known: Calibration, *used: int, costs: Costs = COSTS) -> Calibration:
    for each in used:
        known = observe_end(known, costs, each)
    return known


def test_more_than_stamped_raises_at_once() -> None:
    assert observe_use(Calibration(), COSTS, 1001) == Calibration(101)
    assert observe_use(Calibration(), COSTS, 1200) == Calibration(120)
    assert observe_use(Calibration(), COSTS, 9000) == Calibration(150)


def test_no_more_than_stamped_changes_nothing_while_it_runs() -> None:
    assert observe_use(Calibration(), COSTS, 1000) == Calibration()
    assert observe_use(Calibration(120, 3, 90), COSTS, 1000) == Calibration(120, 3, 90)


def test_less_lowers_only_after_five_loads_and_to_the_most_of_them() -> None:
    four = ended(Calibration(120), 900, 910, 905, 900)
    assert four == Calibration(120, 4, 91)
    assert ended(four, 890) == Calibration(91)
    assert ended(Calibration(), 10, 10, 10, 10, 10) == Calibration(85)


def test_one_load_that_took_more_begins_the_count_anew() -> None:
    assert ended(Calibration(), 900, 900, 900, 900, 1100, 900) == Calibration(110, 2, 110)


def test_loads_that_were_stamped_by_another_factor_count_by_what_was_computed() -> None:
    scaled = Costs(weights_bytes=1200, calibration_percent=120)
    assert ended(Calibration(120), *[1000] * 5, costs=scaled) == Calibration(100)
    assert observe_use(Calibration(120), scaled, 1201) == Calibration(121)


def test_limits_are_no_room_for_more_and_no_reason_for_less() -> None:
    roomy = COSTS.model_copy(update={"host_cache_bytes": 500, "checkpoint_bytes": 100, "workspace_bytes": 100})
    assert observe_use(Calibration(), roomy, 1700) == Calibration()
    assert observe_use(Calibration(), roomy, 1701) == Calibration(101)
    assert ended(Calibration(), *[1100] * 5, costs=roomy) == Calibration()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=40))
def test_factor_stays_in_its_bounds_and_covers_the_last_load(story: list[tuple[bool, int]]) -> None:
    known = Calibration()
    for is_over, used in story:
        before, known = known, (observe_end if is_over else observe_use)(known, COSTS, used)
        assert 85 <= known.percent <= 150
        assert 0 <= known.loads < 5
        assert known.percent >= min(150, -(-used // 10)) or used <= 1000
        if known.percent < before.percent:
            assert is_over
            assert before.loads == 4


@given(PERCENTS, st.integers(1, 1 << 18), st.integers(1, 8), st.sampled_from(["Host", "Cuda0"]))
def test_only_what_is_computed_in_host_memory_is_scaled(percent: int, window: int, slots: int, pool: str) -> None:
    shape = geometry(sliding_window_tokens=512, sliding_layers=(0, 1))
    options = EngineOptions(context_tokens=window, slots=slots, host_cache_mib=64, context_checkpoints=2)
    place = lane(compute=Compute.CUDA if pool != "Host" else Compute.CPU, pool=pool, digest="a" * 64)
    plain = cost_formulas(shape, place, options, 1000)
    for before, after in zip(plain, cost_formulas(shape, place, options, 1000, percent), strict=True):
        old, new = before.costs(window), after.costs(window)
        assert after.total_bytes(window) == new.total_bytes
        if old.pool != "Host":
            assert new == old
            continue
        assert new.calibration_percent == percent
        assert (new.host_cache_bytes, new.checkpoint_bytes) == (old.host_cache_bytes, old.checkpoint_bytes)
        assert new.workspace_bytes == old.workspace_bytes
        for field in ("weights_bytes", "kv_cache_bytes", "compute_bytes", "floor_bytes"):
            exact = getattr(old, field) * percent / 100
            assert exact <= getattr(new, field) <= exact * 1.2 + 1024


def test_cache_that_vllm_is_told_to_take_is_neither_scaled_nor_learned_from() -> None:
    """Of the window's length whatever was used: with less it doesn't start."""
    options = EngineOptions(context_tokens=131_072, slots=1)
    place = lane(engine=EngineName.VLLM)
    (plain,) = cost_formulas(geometry(), place, options, 0)
    costs = plain.costs(131_072)
    learned = as_learned(EngineName.VLLM, costs)
    assert learned is not None
    assert learned.total_bytes == costs.total_bytes
    used = costs.total_bytes - costs.kv_cache_bytes * 9 // 10
    assert ended(Calibration(), *[used] * 5, costs=learned) == Calibration(), "the untouched cache is no reason"
    for percent in (85, 150):
        (scaled,) = cost_formulas(geometry(recurrent_bytes=1000), place, options, 0, percent)
        assert scaled.kv_cache_bytes(131_072) == costs.kv_cache_bytes
        assert scaled.costs(131_072).floor_bytes != costs.floor_bytes
        again = as_learned(EngineName.VLLM, scaled.costs(131_072))
        assert again is not None
        assert observe_use(Calibration(percent), again, again.total_bytes) == Calibration(percent)


def test_stamp_of_vllm_from_before_its_own_formula_teaches_nothing() -> None:
    old = Costs(weights_bytes=270_000_000, kv_cache_bytes=200_000_000, floor_bytes=100_000_000)
    assert as_learned(EngineName.VLLM, old) is None
    assert as_learned(EngineName.VLLM, old.model_copy(update={"calibration_percent": 150})) is None
    assert as_learned(EngineName.LLAMA_SERVER, old) is old
