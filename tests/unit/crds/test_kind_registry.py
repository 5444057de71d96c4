"""The names that a person may type for a kind."""

import pytest
from covey_api.registry import KINDS, WRITABLE_KINDS, parse_kind


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("models", "Model"),
        ("model", "Model"),
        ("Model", "Model"),
        ("plc", "Placement"),
        ("cnodes", "Node"),
        ("cn", "Node"),
        ("nodes", "Node"),
        ("node", "Node"),
        ("inst", "Instance"),
        ("AccessKeys", "AccessKey"),
        ("ak", "AccessKey"),
    ],
)
def test_plural_singular_and_short_names_are_known(word: str, kind: str) -> None:
    assert parse_kind(word) is KINDS[kind]


def test_unknown_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of accesskeys, cnodes, .*; got 'pods'"):
        parse_kind("pods")


def test_no_two_kinds_share_a_name() -> None:
    names = [name for kind in KINDS.values() for name in (kind.PLURAL, kind.SINGULAR, *kind.SHORT_NAMES)]
    assert len(names) == len(set(names))


def test_people_write_every_kind_but_instances() -> None:
    assert set(KINDS) - WRITABLE_KINDS == {"Instance"}
