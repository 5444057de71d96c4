"""An edit changes the text of the named documents and not a byte of any other."""

from collections.abc import Mapping

import pytest
from covey_api.kinds import ObjectKey
from covey_controller.ports import Applied, InvalidSet
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.edit import Edit, plan_apply, plan_delete, verify_edit
from hypothesis import given
from hypothesis import strategies as st
from kit.documents import model_key, model_yaml, node_key, node_yaml, placement_key, placement_yaml


def apply(
    files: Mapping[str, bytes], text: str, single_file: str | None = None, taken: frozenset[str] = frozenset()
) -> Edit:
    """The plan, verified as the store verifies it."""
    before, applied = parse_documents(files), parse_documents({"given.yaml": text.encode()})
    edit = plan_apply(files, before, applied, text, single_file, taken)
    verify_edit(edit, before, applied, frozenset(), parse_documents(after(files, edit)))
    return edit


def delete(files: Mapping[str, bytes], *keys: ObjectKey, single_file: str | None = None) -> Edit:
    before = parse_documents(files)
    edit = plan_delete(files, before, keys, single_file)
    verify_edit(edit, before, (), frozenset(keys), parse_documents(after(files, edit)))
    return edit


def after(files: Mapping[str, bytes], edit: Edit) -> dict[str, bytes]:
    merged: dict[str, bytes | None] = {**files, **edit.files}
    return {path: content for path, content in merged.items() if content is not None}


def text_of(edit: Edit, path: str) -> str:
    content = edit.files[path]
    assert content is not None
    return content.decode()


COMMENTED = f"""# The fleet.
# Owner: somebody
---
# first
{model_yaml()}# after the first

--- # a mark with words
# second
{placement_yaml()}
---
# third
{placement_yaml("other")}"""


def test_new_document_goes_into_a_file_of_its_own() -> None:
    edit = apply({}, f"# mine\n{placement_yaml()}")
    assert edit.files == {"placement-smollm2.yaml": f"# mine\n{placement_yaml()}".encode()}
    assert edit.results == (Applied(placement_key(), "created"),)


def test_each_new_document_of_a_text_gets_its_own_file() -> None:
    edit = apply({}, f"# words alone\n---\n{model_yaml()}---\n{placement_yaml()}...\n")
    assert edit.files == {
        "model-smollm2.yaml": model_yaml().encode(),
        "placement-smollm2.yaml": placement_yaml().encode(),
    }


def test_equal_document_is_unchanged_and_nothing_is_written() -> None:
    edit = apply({"a.yaml": COMMENTED.encode()}, placement_yaml())
    assert edit.files == {}
    assert edit.results == (Applied(placement_key(), "unchanged"),)


def test_changed_document_is_replaced_in_place_among_all_comments() -> None:
    edit = apply({"a.yaml": COMMENTED.encode()}, placement_yaml(replicas=3))
    assert edit.results == (Applied(placement_key(), "configured"),)
    begin, end = COMMENTED.index("--- # a mark"), COMMENTED.index("---\n# third")
    assert text_of(edit, "a.yaml") == f"{COMMENTED[:begin]}---\n{placement_yaml(replicas=3)}{COMMENTED[end:]}"


def test_deleted_document_takes_only_its_own_text_along() -> None:
    edit = delete({"a.yaml": COMMENTED.encode()}, placement_key())
    begin, end = COMMENTED.index("--- # a mark"), COMMENTED.index("---\n# third")
    assert text_of(edit, "a.yaml") == COMMENTED[:begin] + COMMENTED[end:]


def test_file_of_which_nothing_is_left_is_removed_and_one_with_comments_is_not() -> None:
    files = {"a.yaml": f"---\n{model_yaml()}".encode(), "b.yaml": f"# why\n---\n{placement_yaml()}".encode()}
    edit = delete(files, model_key(), placement_key())
    assert edit.files == {"a.yaml": None, "b.yaml": b"# why\n"}


def test_single_file_source_takes_new_documents_at_its_end_and_is_never_removed() -> None:
    files = {"fleet.yaml": model_yaml().rstrip().encode()}
    edit = apply(files, placement_yaml(), single_file="fleet.yaml")
    assert text_of(edit, "fleet.yaml") == f"{model_yaml()}---\n{placement_yaml()}"
    assert delete(files, model_key(), single_file="fleet.yaml").files == {"fleet.yaml": b""}


def test_file_name_that_is_taken_is_not_overwritten() -> None:
    other = placement_yaml("other").encode()
    assert list(apply({"placement-smollm2.yaml": other}, placement_yaml()).files) == ["placement-smollm2-2.yaml"]
    assert list(apply({}, placement_yaml(), taken=frozenset({"placement-smollm2.yaml"})).files) == [
        "placement-smollm2-2.yaml"
    ]
    elsewhere = placement_yaml().replace("{name: smollm2}", "{name: smollm2, namespace: team}", 1)
    assert list(apply({"placement-smollm2.yaml": placement_yaml().encode()}, elsewhere).files) == [
        "placement-team-smollm2.yaml"
    ]


def test_json_stays_json() -> None:
    written = '{"apiVersion": "covey.dev/v1alpha1", "kind": "Node", "metadata": {"name": "a"}, "spec": {}}'
    edit = apply({"node.json": written.encode()}, node_yaml())
    assert text_of(edit, "node.json").startswith('{\n  "apiVersion"')


def test_applied_json_with_tabs_becomes_readable_yaml() -> None:
    edit = apply({}, '{\n\t"apiVersion": "covey.dev/v1alpha1",\n\t"kind": "Node",\n\t"metadata": {"name": "a"}\n}')
    assert "\t" not in text_of(edit, "node-a.yaml")


LIST = """apiVersion: v1
kind: List
items:
- {apiVersion: covey.dev/v1alpha1, kind: Node, metadata: {name: a}}
- {apiVersion: covey.dev/v1alpha1, kind: Node, metadata: {name: b}}
"""


def test_objects_of_an_applied_list_become_documents() -> None:
    assert sorted(apply({}, LIST).files) == ["node-a.yaml", "node-b.yaml"]


def test_object_inside_a_list_is_refused_for_editing_by_name_of_the_file() -> None:
    with pytest.raises(InvalidSet, match=r"'list\.yaml' holds several objects in one document; edit it by hand"):
        delete({"list.yaml": LIST.encode()}, node_key())


def test_text_that_is_no_utf_8_is_refused() -> None:
    files = {"a.yaml": placement_yaml().encode("utf-16")}
    with pytest.raises(InvalidSet, match=r"'a\.yaml' must be UTF-8 to be edited"):
        plan_delete(files, parse_documents({"a.yaml": placement_yaml().encode()}), (placement_key(),), None)


def test_edit_that_would_come_out_otherwise_than_meant_is_refused() -> None:
    before = parse_documents({"a.yaml": model_yaml().encode()})
    with pytest.raises(InvalidSet, match="edit it by hand"):
        verify_edit(Edit({"a.yaml": None}, ()), before, (), frozenset(), ())


SHAPES = st.sampled_from(["---\n", "--- # words\n", "...\n---\n", "\n\n---\n# comment\n", "---\r\n"])
NAMES = ("a", "b", "c", "d")


@given(
    st.lists(SHAPES, min_size=4, max_size=4),
    st.sampled_from(NAMES),
    st.booleans(),
    st.sampled_from(["", "---\n", "# top\n"]),
)
def test_other_documents_keep_every_byte(shapes: list[str], name: str, is_deleted: bool, top: str) -> None:
    texts = {other: f"# about {other}\n{placement_yaml(other)}# end of {other}\n" for other in NAMES}
    file = top + "".join(texts[other] + shape for other, shape in zip(NAMES, shapes, strict=True))
    files = {"a.yaml": file.encode()}
    edit = delete(files, placement_key(name)) if is_deleted else apply(files, placement_yaml(name, replicas=9))
    edited = text_of(edit, "a.yaml")
    for other in NAMES:
        assert (texts[other] in edited) == (other != name)
    assert ("replicas: 9" in edited) != is_deleted
