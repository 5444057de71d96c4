"""The estimate of the engines in Python against what they took, as measured (`kit.python_loads`)."""

import pytest
from covey_api.engines import EngineName
from kit.measured import DOCUMENT, MIB
from kit.python_loads import FIXTURE, TABLE_END, TABLE_START, WISHES, WholeLoad, parse_loads, render_table

LOADS = parse_loads(FIXTURE.read_text())


@pytest.mark.parametrize(
    "load", LOADS, ids=lambda load: f"{load.engine}-{load.options.context_tokens}x{load.options.slots}"
)
def test_engine_never_took_more_than_is_predicted_nor_much_less(load: WholeLoad) -> None:
    # A build for processors without wide matrix instructions lays nothing out anew, which is counted all the same.
    unused = load.geometry.repack_bytes if load.engine is EngineName.LLAMA_CPP else 0
    assert load.peak_bytes <= load.predicted_bytes() <= 1.15 * load.peak_bytes + 64 * MIB + unused


def test_table_is_of_these_loads() -> None:
    assert len(LOADS) == len(WISHES)
    assert TABLE_START + render_table(LOADS) + TABLE_END in DOCUMENT.read_text()
