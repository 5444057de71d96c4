"""The estimate of the engines in Python against what they took, as measured (`kit.python_loads`)."""

import pytest
from covey_planner.choice.ways import slots_of
from kit.measured import DOCUMENT, MIB
from kit.python_loads import FIXTURE, TABLE_END, TABLE_START, WISHES, WholeLoad, parse_loads, render_table

LOADS = parse_loads(FIXTURE.read_text())


@pytest.mark.parametrize(
    "load", LOADS, ids=lambda load: f"{load.engine}-{load.options.context_tokens}x{load.options.slots}"
)
def test_engine_never_took_more_than_is_predicted_nor_much_less(load: WholeLoad) -> None:
    assert load.peak_bytes <= load.predicted_bytes() <= 1.15 * load.peak_bytes + 64 * MIB


def test_only_what_the_planner_stamps_is_measured() -> None:
    for load in LOADS:
        assert load.options.slots == slots_of(load.engine, load.options.slots)


def test_table_is_of_these_loads() -> None:
    assert len(LOADS) == len(WISHES)
    assert TABLE_START + render_table(LOADS) + TABLE_END in DOCUMENT.read_text()
