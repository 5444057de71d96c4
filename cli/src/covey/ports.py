"""What commands ask of a fleet, whichever way it is reached. `connect` chooses; commands know nothing else.

`Objects` are read and changed where they live: at the controller in files mode, at the API server in Kubernetes.
`Questions` are what only the controller knows; the same calls in both modes, over another way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, cast
from urllib.parse import quote

from covey.documents import Documents

JsonObject = dict[str, Any]


class Objects(Protocol):
    """Objects as JSON. `namespace` None: all of them; empty: the kind is cluster-scoped."""

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]: ...

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        """CommandError NOTHING_MATCHED if there is none."""
        ...

    def list_events(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        """`{reason, message, warning}` each, the oldest first."""
        ...

    def watch_objects(self, plurals: list[str], namespace: str | None) -> Iterator[JsonObject]:
        """`{type, object}` each, beginning with what there is; empty dicts are signs of life."""
        ...

    def apply_documents(self, documents: Documents, namespace: str, author: str = "") -> list[JsonObject]:
        """`{kind, namespace, name, outcome}` each. Nothing is written unless all are valid.

        `author`: of the commit, where the source is a git repository; a cluster knows who writes.
        """
        ...

    def check_documents(self, documents: Documents, namespace: str) -> list[JsonObject]:
        """The objects that an apply would leave, with defaults; nothing is written. CommandError as apply's."""
        ...

    def delete_keys(self, keys: list[JsonObject], author: str = "") -> list[JsonObject]: ...

    def create_key(self, name: str, namespace: str, limits: JsonObject) -> str:
        """A new access key's text, of which only the hash is stored. `limits`: of its `spec`, but the hash."""
        ...


class Questions(ABC):
    """What only the controller knows."""

    @abstractmethod
    def call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        """One call of the control API. CommandError with its words."""

    def explain(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self.call("GET", f"/api/v1/why/{plural}/{namespace or '-'}/{name}")

    def foresee(self, text: str, name: str) -> JsonObject:
        """`{text, data}`: what these documents would come to."""
        return self.call("POST", "/api/v1/plan", {"text": text, "name": name})

    def get_progress(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self.call("GET", f"/api/v1/progress/{plural}/{namespace or '-'}/{name}")

    def read_logs(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        """`{instance, instanceId, member, node, text, error}` of each engine: its last output."""
        return self._ask_nodes("logs", plural, namespace, name)

    def capture(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        """As `read_logs`: all that each engine's node can tell of it."""
        return self._ask_nodes("capture", plural, namespace, name)

    def _ask_nodes(self, what: str, plural: str, namespace: str, name: str) -> list[JsonObject]:
        answer = self.call("GET", f"/api/v1/{what}/{plural}/{namespace or '-'}/{name}")
        return cast(list[JsonObject], answer["items"])

    def get_source(self) -> JsonObject:
        return self.call("GET", "/api/v1/source")

    def list_gateways(self) -> list[JsonObject]:
        return cast(list[JsonObject], self.call("GET", "/api/v1/gateways")["items"])

    def delete_gateway(self, name: str) -> None:
        """CommandError NOTHING_MATCHED if none of this name has a certificate."""
        self.call("DELETE", f"/api/v1/gateways/{quote(name, safe='')}")

    def create_token(self, role: str, uses: int, ttl_seconds: int) -> str:
        return str(
            self.call("POST", "/api/v1/tokens", {"role": role, "uses": uses, "ttlSeconds": ttl_seconds})["token"]
        )
