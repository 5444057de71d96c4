"""A hub of models on loopback, shaped as Hugging Face's: its API, resolved files, and a store behind signed addresses.

Large files are redirected to the store, another origin, whose addresses hold for a number of requests and which refuses
whoever shows it a token; small ones come from the hub itself over a relative redirect. `_` in `kit.index` are faults of
either side.
"""

import contextlib
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from kit.index import FileHandler, FileServer, Seen

# Hubs keep files of 10 MB outside git; here far less is large.
LARGE_BYTES = 4096


@dataclass(slots=True)
class HubState:
    revisions: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """(repository, branch) → commit."""
    trees: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict[tuple[str, str], dict[str, bytes]])
    """(repository, commit) → path → content."""
    token: str = ""
    """What every request to the hub must bear; empty: nothing."""
    gated: bool = False
    uses: int = 1000
    """Requests that one signed address is good for."""
    spent: dict[str, int] = field(default_factory=dict[str, int])
    signed: int = 0
    wrong_blob_id: str = ""
    """This file's git hash is given wrong."""
    store: str = ""


class Hub(FileServer):
    """`base` is what `HF_ENDPOINT` would be."""

    def __init__(self) -> None:
        self.hub = HubState()
        self.store = FileServer(_handler(_StoreHandler, self.hub))
        self.hub.store = self.store.base
        super().__init__(_handler(_HubHandler, self.hub))

    def push(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        """A commit with these files, at the end of the branch."""
        text = repr((repository, sorted(files.items())))
        commit = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.hub.trees[repository, commit] = files
        self.hub.revisions[repository, branch] = commit
        return commit

    def close(self) -> None:
        super().close()
        self.store.close()


@contextlib.contextmanager
def running_hub() -> Generator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


class _Handler(FileHandler):
    hub: HubState


def _handler(handler: type[_Handler], hub: HubState) -> type[_Handler]:
    return type("Handler", (handler,), {"hub": hub})


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        self.state.requests.append(Seen(self.path, dict(self.headers.items())))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._route(unquote(urlsplit(self.path).path).strip("/").split("/"))

    def _route(self, parts: list[str]) -> None:
        hub = self.hub
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, "application/json", b"{}", **{"X-Error-Code": "RepoNotFound"})
        elif hub.gated:
            self.answer(403, "application/json", b"{}", **{"X-Error-Code": "GatedRepo"})
        elif self.state.faults.busy > 0:
            self.state.faults.busy -= 1
            more = {"Retry-After": self.state.faults.retry_after} if self.state.faults.retry_after else {}
            self.answer(self.state.faults.busy_status, "text/plain", b"busy", **more)
        elif parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "revision":
            self._describe("/".join(parts[2:4]), "/".join(parts[5:]))
        elif parts[:3] == ["api", "resolve-cache", "models"]:
            self._send("/".join(parts[3:5]), parts[5], "/".join(parts[6:]), is_cached=True)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._send("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.answer(404, "text/plain", b"no")

    def _describe(self, repository: str, revision: str) -> None:
        commit = self.hub.revisions.get((repository, revision), revision)
        tree = self.hub.trees.get((repository, commit))
        if tree is None:
            self.answer(404, "application/json", b"{}", **{"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [self._sibling(path, content) for path, content in sorted(tree.items())]
        page = {"id": repository, "sha": commit, "siblings": siblings}
        self.answer(200, "application/json", json.dumps(page).encode())

    def _sibling(self, path: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
        if len(content) > LARGE_BYTES:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        if path == self.hub.wrong_blob_id:
            entry["blobId"] = "0" * 40
        return entry

    def _send(self, repository: str, commit: str, path: str, *, is_cached: bool = False) -> None:
        content = self.hub.trees.get((repository, commit), {}).get(path)
        if content is None:
            self.answer(404, "text/plain", b"no", **{"X-Error-Code": "EntryNotFound"})
        elif len(content) > LARGE_BYTES:
            self.hub.signed += 1
            target = f"{self.hub.store}/{repository}/{commit}/{path}?signature=secret-{self.hub.signed}"
            self.answer(302, "text/plain", b"", Location=target)
        elif is_cached:
            self.send_content(content)
        else:
            self.answer(307, "text/plain", b"", Location=f"/api/resolve-cache/models/{repository}/{commit}/{path}")


class _StoreHandler(_Handler):
    def do_GET(self) -> None:
        self.state.requests.append(Seen(self.path, dict(self.headers.items())))
        hub, address = self.hub, urlsplit(self.path)
        owner, name, commit, *path = unquote(address.path).strip("/").split("/")
        signature = parse_qs(address.query).get("signature", [""])[0]
        hub.spent[signature] = hub.spent.get(signature, 0) + 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if "Authorization" in self.headers:
                self.answer(400, "text/plain", b"only one way to prove who you are")
            elif not signature or hub.spent[signature] > hub.uses:
                self.answer(403, "text/plain", b"expired")
            else:
                body = self.state.faults.body
                content = hub.trees[f"{owner}/{name}", commit]["/".join(path)]
                self.send_content(content if body is None else body)
