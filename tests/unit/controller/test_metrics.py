"""The figures: valid OpenMetrics, series that don't grow with the fleet, writes counted at the port."""

from collections.abc import Mapping

import pytest
from covey_api.kinds import Kind, ObjectKey
from covey_controller.metrics.figures import ControllerMetrics, ControllerView, WatchView
from covey_controller.metrics.measured_store import MeasuredStore
from covey_controller.ports import Conflict, Refused
from kit import builders
from kit.memory_store import MemoryStore
from kit.metrics import OPENMETRICS, parse_metrics
from prometheus_client.exposition import choose_encoder


def scrape(metrics: ControllerMetrics) -> dict[str, float]:
    encode, _ = choose_encoder(OPENMETRICS)
    return parse_metrics(encode(metrics.registry).decode())


def test_a_replica_that_does_not_lead_tells_zeros_and_no_figure_is_missing() -> None:
    found = scrape(ControllerMetrics(ControllerView))
    assert found["covey_controller_leader"] == 0
    assert found['covey_controller_instances{phase="Failed"}'] == 0
    assert found['covey_controller_placements{ready="False"}'] == 0
    assert found['covey_controller_connected_streams{role="gateway"}'] == 0
    assert "covey_controller_listed_age_seconds" not in found


def test_series_are_as_many_for_a_hundred_objects_as_for_one() -> None:
    def view(count: int) -> ControllerView:
        objects = [builders.model(f"m{number}") for number in range(count)]
        objects += [builders.placement(f"m{number}") for number in range(count)]
        return ControllerView(True, 7, objects, watch=WatchView(1.5, 2))

    one, many = (scrape(ControllerMetrics(lambda count=count: view(count))) for count in (1, 100))
    assert one.keys() == many.keys()
    assert many['covey_controller_objects{kind="Model"}'] == 100
    assert many['covey_controller_placements{ready="Unknown"}'] == 100
    assert (many["covey_controller_term"], many["covey_controller_watch_restarts_total"]) == (7, 2)


def test_turns_are_counted_by_their_end() -> None:
    metrics = ControllerMetrics(ControllerView)
    for error in (None, None, Conflict(), Refused(), OSError()):
        metrics.record_turn(0.02, error)
    found = scrape(metrics)
    ends = {end: found[f'covey_controller_reconcile_turns_total{{outcome="{end}"}}'] for end in ("done", "failed")}
    assert ends == {"done": 2, "failed": 1}
    assert found['covey_controller_reconcile_turn_duration_seconds_bucket{le="0.025"}'] == 5
    assert found["covey_controller_reconcile_turn_duration_seconds_sum"] == pytest.approx(0.1)


@pytest.mark.anyio
async def test_writes_are_counted_with_what_became_of_them() -> None:
    metrics = ControllerMetrics(ControllerView)
    memory = MemoryStore()
    store = MeasuredStore(memory, metrics)
    await store.acquire_lease("a")
    made = builders.instance()
    await store.create(made)
    with pytest.raises(Conflict):
        await store.create(made)
    objects: Mapping[ObjectKey, Kind] = await store.list_objects()
    await store.delete(made.key, objects[made.key].metadata.uid)
    found = scrape(metrics)
    counts = {name: value for name, value in found.items() if name.startswith("covey_controller_writes_total")}
    assert counts == {
        'covey_controller_writes_total{kind="Instance",outcome="done",verb="create"}': 1,
        'covey_controller_writes_total{kind="Instance",outcome="conflict",verb="create"}': 1,
        'covey_controller_writes_total{kind="Instance",outcome="done",verb="delete"}': 1,
    }
