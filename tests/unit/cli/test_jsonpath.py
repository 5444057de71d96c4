"""Column paths: what kubectl's printer columns use."""

import pytest
from covey.jsonpath import find_values, parse_path
from covey_api.registry import KINDS

DOCUMENT = {
    "spec": {"members": [{"node": "a"}, {"node": "b"}], "names": ["x", "y"]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.members[*].node", ["a", "b"]),
        (".spec.names", ["x", "y"]),
        (".status.conditions[?(@.type=='Ready')].status", ["True"]),
        (".status.conditions[?(@.type=='Gone')].status", []),
        (".spec.absent.deeper", []),
        (".spec.names.deeper", []),
    ],
)
def test_find_values_returns_what_kubectl_would_print(path: str, expected: list[str]) -> None:
    assert find_values(DOCUMENT, path) == expected


def test_parse_path_names_the_character_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="at character 5"):
        parse_path(".spec!x")


def test_every_printer_column_has_a_path_that_parses() -> None:
    paths = [column.json_path for kind in KINDS.values() for column in kind.COLUMNS]
    assert paths
    assert all(parse_path(path) for path in paths)
