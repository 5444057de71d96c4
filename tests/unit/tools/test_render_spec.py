"""The pages of `docs/spec/`: examples that hold, every field, and the reasons that a kind can really show."""

import ast
from pathlib import Path
from typing import Any

import covey_controller.reconcile.judge as judge
import pytest
import yaml
from covey_api.kinds import Kind
from covey_api.reasons import ReadyReason
from covey_api.registry import KINDS, WRITABLE_KINDS
from covey_api.schema import render_schema
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.strict import check_document
from render_spec import EXAMPLES, REASONS, read_reason_lines, render_page, walk

ALL_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def example_of(kind: type[Kind]) -> bytes:
    return (EXAMPLES / f"{kind.__name__.lower()}.yaml").read_bytes()


@ALL_KINDS
def test_the_example_of_a_page_is_taken(kind: type[Kind]) -> None:
    document: dict[str, Any] = yaml.safe_load(example_of(kind))
    _, problems = check_document(document, kind)
    assert problems == ()
    if kind.__name__ in WRITABLE_KINDS:
        (parsed,) = parse_documents({"example.yaml": example_of(kind)})
        assert type(parsed.object) is kind


@ALL_KINDS
def test_a_page_has_every_field_with_its_words(kind: type[Kind]) -> None:
    page, schema = render_page(kind), render_schema(kind, is_described=True)
    for part in ("spec", "status"):
        for path, node in walk(schema["properties"][part], part):
            assert f"| `{path}` | {node['type']} |" in page or path == "status"
            assert node.get("description") or (path.endswith("]") and node["type"] != "object"), path


@pytest.mark.parametrize("name", REASONS)
def test_a_page_has_every_reason_with_its_line(name: str) -> None:
    page, lines = render_page(KINDS[name]), read_reason_lines()
    for reason in REASONS[name]:
        line = lines[type(reason).__name__][reason].replace("|", r"\|")
        assert f"| `{reason}` | {line} |" in page


def test_reasons_of_an_instance_are_those_that_its_judgement_names() -> None:
    tree = ast.parse(Path(judge.__file__).read_text(encoding="utf-8"))
    parts = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "judge_instance")
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_REASON_OF_PHASE")
    ]
    assert len(parts) == 2
    found = {
        ReadyReason[node.attr]
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ReadyReason"
    }
    assert found == set(REASONS["Instance"])
