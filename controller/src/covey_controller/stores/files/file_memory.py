"""Parses only the files that changed since the last time: a save in a large fleet costs what the saved file costs.

It relies on what the parser promises: a document is right or wrong whatever else is in the set, but for one rule, that
no object is given twice. Whenever anything is wrong, the whole set is parsed as it is, for its errors in full.
"""

from collections.abc import Mapping

from covey_controller.ports import InvalidSet
from covey_controller.stores.files.rest import Document, ParseDocuments, SecretDocument


class FileMemory:
    """A `ParseDocuments` that remembers the last valid set, file by file. For one thread."""

    def __init__(self, parse: ParseDocuments) -> None:
        self._parse = parse
        self._held: Mapping[str, tuple[bytes, tuple[Document | SecretDocument, ...]]] = {}

    def __call__(self, files: Mapping[str, bytes]) -> tuple[Document | SecretDocument, ...]:
        """As the parser itself: every document, or InvalidSet with every error."""
        parsed: dict[str, tuple[bytes, tuple[Document | SecretDocument, ...]]] = {}
        try:
            for path in sorted(files):
                held = self._held.get(path)
                is_same = held is not None and held[0] == files[path]
                parsed[path] = held if held is not None and is_same else (files[path], self._parse_one(path, files))
        except InvalidSet:
            return tuple(self._parse(files))
        documents = tuple(document for _, held in parsed.values() for document in held)
        if len({document.key for document in documents}) < len(documents):
            return tuple(self._parse(files))
        self._held = parsed
        return documents

    def _parse_one(self, path: str, files: Mapping[str, bytes]) -> tuple[Document | SecretDocument, ...]:
        return tuple(self._parse({path: files[path]}))
