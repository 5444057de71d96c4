import re

import pytest
from covey_api.meta import MAX_NAME_LENGTH, NAME_PATTERN
from covey_api.pod_names import render_covey_name
from hypothesis import given
from hypothesis import strategies as st

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
SUBDOMAIN = st.lists(LABEL, min_size=1, max_size=6).map(".".join).filter(lambda name: len(name) <= 253)


@given(SUBDOMAIN)
def test_every_name_of_kubernetes_has_a_covey_name_that_stays_the_same_when_mapped_again(name: str) -> None:
    mapped = render_covey_name(name)
    assert re.fullmatch(NAME_PATTERN, mapped)
    assert len(mapped) <= MAX_NAME_LENGTH
    assert render_covey_name(mapped) == mapped


@given(SUBDOMAIN, SUBDOMAIN)
def test_two_names_of_kubernetes_stay_two(one: str, other: str) -> None:
    assert (render_covey_name(one) == render_covey_name(other)) is (one == other)


def test_name_that_is_short_and_without_dots_is_kept() -> None:
    assert render_covey_name("gpu-1") == "gpu-1"


def test_name_with_dots_is_still_read_by_people() -> None:
    name = "ip-10-0-0-1.eu-central-1.compute.internal"
    assert re.fullmatch(r"ip-10-0-0-1-eu-central-1-compute-internal-[0-9a-f]{8}", render_covey_name(name))


@pytest.mark.parametrize("name", ["My Node", "", "-a", "a..b", "a" * 254])
def test_what_is_no_name_in_kubernetes_either_is_left_to_be_refused(name: str) -> None:
    assert render_covey_name(name) == name
