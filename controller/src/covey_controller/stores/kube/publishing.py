"""The fleet's certificates in ConfigMap `covey-authority`: for pods, which have nothing else to trust at first.

The leader writes it when it differs, and looks when it begins to lead, when the authority changes, and now and then: a
ConfigMap that somebody deletes or edits is put right.
"""

import asyncio
import logging
from collections.abc import Callable

from covey_controller.stores.kube.client import MERGE_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeError
from covey_controller.trust import Trust

CONFIG_MAP_NAME = "covey-authority"
CERTIFICATES_KEY = "authorities.pem"
LOOK_SECONDS = 60.0
# While this process doesn't lead, or the API server is away.
RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


async def publish_authority(
    client: KubeClient, namespaces: tuple[str, ...], trust: Trust, is_leading: Callable[[], bool]
) -> None:
    """Keep the ConfigMap of each namespace current whenever this process leads, until cancelled."""
    complaint = ""
    while True:
        seconds = RETRY_SECONDS
        if is_leading():
            try:
                for namespace in namespaces:
                    await ensure_published(client, namespace, trust.current.bundle_pem)
                seconds, complaint = LOOK_SECONDS, ""
            except KubeError as error:
                if str(error) != complaint:
                    _log.warning("ConfigMap '%s' can't be written, pods can't join: %s", CONFIG_MAP_NAME, error)
                complaint = str(error)
        try:
            async with asyncio.timeout(seconds):
                await trust.wait_changed()
        except TimeoutError:
            continue


async def ensure_published(client: KubeClient, namespace: str, certificates: str) -> None:
    """KubeError if it can't be read or written."""
    folder = f"/api/v1/namespaces/{namespace}/configmaps"
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP_NAME},
        "data": {CERTIFICATES_KEY: certificates},
    }
    try:
        found = await client.request("GET", f"{folder}/{CONFIG_MAP_NAME}")
    except KubeError as error:
        if not error.is_missing:
            raise
        await client.request("POST", folder, body=body)
        return
    held: dict[str, str] = found.get("data") or {}
    if held.get(CERTIFICATES_KEY) != certificates:
        await client.request("PATCH", f"{folder}/{CONFIG_MAP_NAME}", body=body, content_type=MERGE_PATCH)
