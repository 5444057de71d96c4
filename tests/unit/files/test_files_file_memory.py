"""A set parsed with memory is the set, and its errors are the parser's own."""

from collections.abc import Mapping

from covey_controller.ports import InvalidSet, SourceError
from covey_controller.stores.files.documents import ParsedDocument, parse_documents
from covey_controller.stores.files.file_memory import FileMemory
from covey_controller.stores.files.rest import Document, ParseDocuments, SecretDocument
from hypothesis import given
from hypothesis import strategies as st
from kit.documents import placement_yaml

TEXTS = st.sampled_from(
    [*(placement_yaml(name, replicas).encode() for name in "abc" for replicas in (1, 2)), b"", b"x"]
)
SETS = st.lists(st.dictionaries(st.sampled_from(["1.yaml", "2.yaml", "3.yaml"]), TEXTS), min_size=1, max_size=8)


def outcome(
    parse: ParseDocuments, files: Mapping[str, bytes]
) -> tuple[tuple[Document | SecretDocument, ...], tuple[SourceError, ...]]:
    try:
        return tuple(parse(files)), ()
    except InvalidSet as invalid:
        return (), invalid.errors


@given(SETS)
def test_memory_makes_no_difference(sets: list[dict[str, bytes]]) -> None:
    memory = FileMemory(parse_documents)
    for files in sets:
        assert outcome(memory, files) == outcome(parse_documents, files)


def test_unchanged_files_are_not_parsed_again() -> None:
    parsed: list[str] = []

    def parse(files: Mapping[str, bytes]) -> tuple[ParsedDocument, ...]:
        parsed.extend(files)
        return parse_documents(files)

    memory = FileMemory(parse)
    files = {f"{name}.yaml": placement_yaml(name).encode() for name in "abc"}
    memory(files)
    parsed.clear()
    memory({**files, "b.yaml": placement_yaml("b", 2).encode()})
    assert parsed == ["b.yaml"]
