"""Plans an edit of the source's files: which text goes where when documents are applied or deleted by name. Pure.

An edit touches the text of the named documents only: comments, order and layout of all others stay. For that the text
is cut at document marks (`---` at the start of a line is one wherever it stands), not parsed and printed again.
Nothing here is trusted: `verify_edit` compares what the edited files parse to with what was meant, so that a file which
YAML lets one write in a stranger way is refused instead of damaged.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_api.kinds import ObjectKey
from covey_api.meta import DEFAULT_NAMESPACE

from covey_controller.ports import Applied, InvalidSet, SourceError
from covey_controller.stores.files.rest import Document, SecretDocument, Written

# YAML's own line breaks, as its parser counts lines.
_LINE = re.compile("[^\n\r\x85\u2028\u2029]*(?:\r\n|[\n\r\x85\u2028\u2029]|$)")
_MARK = re.compile(r"---(?=\s|$)")
_BARE_MARK = re.compile(r"---[ \t]*(#.*)?\s*$")
_END = re.compile(r"\.\.\.(?=\s|$)")
# Names tried for one new file; all taken means that somebody fills the folder with just these.
NAME_TRIES = 100


AnyDocument = Document | SecretDocument


@dataclass(frozen=True, slots=True)
class Edit:
    """Files to write (None: remove), and what that does to each document."""

    files: Mapping[str, bytes | None]
    results: tuple[Applied, ...]


@dataclass(slots=True)
class _Segment:
    """One document with its mark, the comments around it, and where it begins; the pieces joined are the file."""

    line: int
    text: str


def plan_apply(
    files: Mapping[str, bytes],
    current: Sequence[AnyDocument],
    applied: Sequence[AnyDocument],
    text: str,
    single_file: str | None,
    taken: frozenset[str],
) -> Edit:
    """Put documents, parsed from `text`, into the files: over the one of the same key, else into a file of their own.

    A document that makes the same object in other words (with a default written out, say) is no change.

    `single_file`: the source's only file, if it is one. `taken`: names in the source that hold no document.
    """
    present = {document.key: document for document in current}
    texts = _Texts(files)
    bodies = _bodies(text, applied)
    results: list[Applied] = []
    for document, body in zip(applied, bodies, strict=True):
        before = present.get(document.key)
        if before is None:
            path = single_file or _new_path(document.key, texts.names | taken)
            texts.append(path, _as_written(path, document, body))
            results.append(Applied(document.key, "created"))
        elif before.raw == document.raw or _makes_same(before, document):
            results.append(Applied(document.key, "unchanged"))
        else:
            texts.replace(before, current, _as_written(before.file, document, body))
            results.append(Applied(document.key, "configured"))
    return Edit(texts.changes(keep_empty=single_file), tuple(results))


def _makes_same(before: AnyDocument, document: AnyDocument) -> bool:
    if isinstance(before, SecretDocument) or isinstance(document, SecretDocument):
        return False  # encrypted anew: what it says may be the same, who can read it isn't
    return before.object == document.object


def plan_delete(
    files: Mapping[str, bytes], current: Sequence[Written], keys: Sequence[ObjectKey], single_file: str | None
) -> Edit:
    """Take documents out of the files; a file of which nothing is left goes too. Keys without a document: skipped."""
    present = {document.key: document for document in current}
    texts = _Texts(files)
    for key in keys:
        if key in present:
            texts.replace(present[key], current, None)
    return Edit(texts.changes(keep_empty=single_file), tuple(Applied(key, "deleted") for key in keys))


def verify_edit(
    edit: Edit,
    before: Sequence[Written],
    applied: Sequence[Written],
    deleted: frozenset[ObjectKey],
    after: Sequence[Written],
) -> None:
    """InvalidSet unless the edited files hold exactly what was meant."""
    meant = {document.key: document.raw for document in before if document.key not in deleted}
    unchanged = {one.key for one in edit.results if one.outcome == "unchanged"}
    meant |= {document.key: document.raw for document in applied if document.key not in unchanged}
    if {document.key: document.raw for document in after} != meant:
        raise InvalidSet(
            tuple(
                SourceError(
                    path, 1, "", "", f"'{path}' can't be edited without touching other text in it; edit it by hand"
                )
                for path in sorted(edit.files)
            )
        )


class _Texts:
    """The files' segments while they are edited; a file is cut up only when it is touched."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._cut: dict[str, list[_Segment]] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._files) | frozenset(self._cut)

    def replace(self, before: Written, current: Sequence[Written], body: str | None) -> None:
        """Replace a document's text, or remove it."""
        segments = self._segments(before.file)
        place = _place(segments, before.line)
        lines = [document.line for document in current if document.file == before.file]
        if [_place(segments, line) for line in lines].count(place) != 1:
            message = f"'{before.file}' holds several objects in one document; edit it by hand"
            raise InvalidSet((SourceError(before.file, before.line, "", str(before.key), message),))
        old = segments[place].text
        if body is None:
            segments[place].text = ""
        else:
            segments[place].text = ("---\n" if place > 0 or _MARK.match(old) else "") + body

    def append(self, path: str, body: str) -> None:
        segments = self._segments(path)
        if segments and not segments[-1].text.endswith("\n"):
            segments[-1].text += "\n"
        has_text = any(segment.text.strip() for segment in segments)
        segments.append(_Segment(1 << 60, f"---\n{body}" if has_text else body))

    def changes(self, keep_empty: str | None) -> dict[str, bytes | None]:
        changed: dict[str, bytes | None] = {}
        for path, segments in self._cut.items():
            text = "".join(segment.text for segment in segments)
            is_empty = all(not line.strip() or _BARE_MARK.match(line) for line in text.splitlines())
            content = None if is_empty and path != keep_empty else text.encode()
            if content != self._files.get(path):
                changed[path] = content
        return changed

    def _segments(self, path: str) -> list[_Segment]:
        if path not in self._cut:
            try:
                text = self._files.get(path, b"").decode()
            except UnicodeDecodeError:
                message = f"'{path}' must be UTF-8 to be edited; save it as UTF-8"
                raise InvalidSet((SourceError(path, 1, "", "another encoding", message),)) from None
            self._cut[path] = _cut(text)
        return self._cut[path]


def _cut(text: str) -> list[_Segment]:
    """The text in pieces, one per document mark; joined they are the text again."""
    segments: list[_Segment] = []
    has_ended = True
    for number, line in enumerate(_LINE.findall(text), start=1):
        if not line:
            continue
        if has_ended or _MARK.match(line):
            segments.append(_Segment(number, ""))
        segments[-1].text += line
        has_ended = _END.match(line) is not None
    return segments


def _place(segments: Sequence[_Segment], line: int) -> int:
    """Index of the segment that holds a line."""
    return max(index for index, segment in enumerate(segments) if index == 0 or segment.line <= line)


def _bodies(text: str, documents: Sequence[Written]) -> list[str | None]:
    """Each document's own text without its mark; None when several share one piece of the text."""
    segments = _cut(text)
    places = [_place(segments, document.line) for document in documents]
    return [_body(segments[place].text) if places.count(place) == 1 else None for place in places]


def _body(text: str) -> str | None:
    lines = [line for line in _LINE.findall(text) if line and not _END.match(line)]
    if lines and _BARE_MARK.match(lines[0]):
        lines = lines[1:]
    if lines and _MARK.match(lines[0]):
        return None
    body = "".join(lines).strip("\r\n")
    return f"{body}\n"


def _as_written(path: str, document: Written, body: str | None) -> str:
    """The text to put into a file: as it came, or printed where it can't stand as it came."""
    # Tabs may indent JSON, never YAML; JSON is YAML as well.
    if body is None or "\t" in body or path.endswith(".json"):
        return json.dumps(document.raw, indent=2, ensure_ascii=False, default=str) + "\n"
    return body


def _new_path(key: ObjectKey, taken: frozenset[str]) -> str:
    """`<kind>-<name>.yaml`, with the namespace, then a number, when the name is taken."""
    kind = key.kind.lower()
    stems = [f"{kind}-{key.name}"]
    if key.namespace not in ("", DEFAULT_NAMESPACE):
        stems.append(f"{kind}-{key.namespace}-{key.name}")
    stems.extend(f"{kind}-{key.name}-{number}" for number in range(2, NAME_TRIES))
    for stem in stems:
        if f"{stem}.yaml" not in taken:
            return f"{stem}.yaml"
    message = f"no free file name like '{stems[0]}.yaml' is left in the source; remove some"
    raise InvalidSet((SourceError(f"{stems[0]}.yaml", 1, "", str(key), message),))
