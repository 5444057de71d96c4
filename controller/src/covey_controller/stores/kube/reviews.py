"""`Reviewer` by the API server: TokenReview and SubjectAccessReview. Nothing is remembered here."""

import asyncio
from typing import Any

from covey_api.meta import GROUP

from covey_controller.ports import Access, Caller, ReviewUnavailable
from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeError

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# The lease is renewed over the same connections: reviews must leave it most of them.
MAX_AT_ONCE = 4
# A fleet that joins at once waits its turn; a flood is told to come back.
MAX_WAITING = 256


class KubeReviewer:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting = 0

    async def review_token(self, token: str, audience: str) -> Caller | None:
        status = await self._review(_TOKEN_REVIEWS, "TokenReview", {"token": token, "audiences": [audience]})
        user = status.get("user", {})
        if not status.get("authenticated") or audience not in status.get("audiences", []) or not user.get("username"):
            return None
        extra: dict[str, list[str]] = user.get("extra") or {}
        return Caller(
            user=user["username"],
            uid=user.get("uid", ""),
            groups=tuple(user.get("groups") or ()),
            extra={key: tuple(values) for key, values in extra.items()},
        )

    async def review_access(self, caller: Caller, access: Access) -> bool:
        attributes = {"group": GROUP, "verb": access.verb, "resource": access.resource}
        attributes |= {"namespace": access.namespace} if access.namespace else {}
        spec: JsonObject = {
            "user": caller.user,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {key: list(values) for key, values in caller.extra.items()},
            "resourceAttributes": attributes,
        }
        status = await self._review(_ACCESS_REVIEWS, "SubjectAccessReview", spec)
        return status.get("allowed") is True

    async def _review(self, path: str, kind: str, spec: JsonObject) -> dict[str, Any]:
        group = path.split("/")[2]
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        if self._waiting >= MAX_WAITING:
            raise ReviewUnavailable("too many are asking at once")
        self._waiting += 1
        try:
            async with self._room:
                answer = await self._client.request("POST", path, body=body)
        except KubeError as error:
            raise ReviewUnavailable(f"{kind}: {error.message}") from error
        finally:
            self._waiting -= 1
        status: dict[str, Any] = answer.get("status") or {}
        return status
