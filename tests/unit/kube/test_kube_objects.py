"""Lists are read no further than to who an object is, and say the same as whoever reads all of it."""

import json
from typing import Any

import pytest
from covey_api.node import Node
from covey_api.placement import Placement
from covey_controller.stores.kube.objects import parse_page, sight_object
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def render_list(*items: dict[str, Any], following: str = "") -> bytes:
    metadata = {"resourceVersion": "900", **({"continue": following} if following else {})}
    return json.dumps({"kind": "NodeList", "metadata": metadata, "items": items}).encode()


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.text(min_size=1),
    st.booleans(),
)
def test_page_tells_of_each_object_what_the_whole_object_does(
    spec: dict[str, Any], extra: dict[str, Any], name: str, is_namespaced: bool
) -> None:
    metadata = extra | {"name": name, "uid": "u", "resourceVersion": "17"}
    metadata |= {"namespace": "ns"} if is_namespaced else {}
    metadata = {key: value for key, value in metadata.items() if key != "namespace" or is_namespaced}
    raw = {"apiVersion": "covey.dev/v1alpha1", "metadata": metadata, "spec": spec}
    whole = sight_object(Placement, raw)
    (listed,) = parse_page(Placement, render_list(raw)).sightings
    assert (listed.key, listed.uid, listed.version) == (whole.key, whole.uid, whole.version)
    assert listed.raw == whole.raw == raw


def test_page_says_how_to_go_on_and_of_which_version_it_is() -> None:
    page = parse_page(Node, render_list(following="next"))
    assert (page.version, page.following, page.sightings) == (900, "next", ())
    assert parse_page(Node, render_list()).following == ""


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"",
        b"[]",
        b'{"items": [], "metadata": {}}',
        b'{"items": null, "metadata": {"resourceVersion": "1"}}',
        b'{"items": [{"metadata": {"name": "a"}}], "metadata": {"resourceVersion": "1"}}',
        b'{"items": [], "metadata": {"resourceVersion": "one"}}',
    ],
)
def test_what_is_no_list_of_an_api_server_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"must be a list of objects|invalid literal"):
        parse_page(Node, content)
