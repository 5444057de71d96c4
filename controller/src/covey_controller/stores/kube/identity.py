"""Whether this process may make the fleet's identity: only where there is no fleet yet.

Whoever finds no Secret, and makes another authority although a fleet runs, locks out every member of it. So:

| the Secret | traces of a fleet (Lease, published authority) | what follows                                      |
|------------|-----------------------------------------------|---------------------------------------------------|
| whole      | any                                           | it is used                                        |
| not whole  | some                                          | waits: a running controller or a person restores it |
| not whole  | none, for `QUIET_SECONDS`                     | a first start, maybe one that was cut off: made   |

The wait in the last row is for a store that was emptied with its Lease: every controller that knows the identity looks
for it more often than that. Rejected: to make the identity only with the Lease in hand. After an emptied store whoever
comes first has it, known identity or not.
"""

import asyncio
import logging
import time
from http import HTTPStatus

from covey_controller.credentials import WATCH_SECONDS
from covey_controller.ports import Vault, VaultUnavailable
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.errors import KubeError
from covey_controller.stores.kube.lease_record import LEASE_NAME
from covey_controller.stores.kube.publishing import CONFIG_MAP_NAME
from covey_controller.stores.kube.vault import SECRET_NAME
from covey_controller.vault import AUTHORITY_CERTIFICATES, AUTHORITY_KEYS, FLEET_SECRET

_log = logging.getLogger(__name__)
_WHOLE = (AUTHORITY_KEYS, AUTHORITY_CERTIFICATES, FLEET_SECRET)

LOOK_SECONDS = 0.5
# Two looks of whoever knows the identity, and a second for its writes.
QUIET_SECONDS = 2 * WATCH_SECONDS + 1.0


async def wait_for_identity(client: KubeClient, vault: Vault, namespace: str) -> None:
    """Until the identity is there, or may be made. VaultUnavailable if the API server can't say."""
    seen: tuple[bytes | None, ...] = ()
    since, said = 0.0, False
    while True:
        found = tuple([await vault.read(name) for name in _WHOLE])
        if None not in found:
            return
        trace = await _find_trace(client, namespace)
        if trace and not said:
            _log.error("%s", _explain(namespace, trace))
        said = said or bool(trace)
        now = time.monotonic()
        if trace or found != seen:
            seen, since = found, now
        elif now - since >= QUIET_SECONDS:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _find_trace(client: KubeClient, namespace: str) -> str:
    """What a controller of this namespace has left behind, in words; empty if none ever led here."""
    for words, path in (
        (f"Lease '{LEASE_NAME}'", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}"),
        (f"ConfigMap '{CONFIG_MAP_NAME}'", f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP_NAME}"),
    ):
        try:
            await client.request("GET", path)
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise VaultUnavailable(str(error)) from error
        else:
            return words
    return ""


def _explain(namespace: str, trace: str) -> str:
    return (
        f"Secret '{namespace}/{SECRET_NAME}' must hold the fleet's identity, and doesn't; {trace} says that a fleet is "
        "here already. A controller that runs writes it again within seconds; otherwise put it back from a backup. To "
        f"begin a new fleet, to which every machine has to join anew: kubectl -n {namespace} delete "
        f"lease/{LEASE_NAME} configmap/{CONFIG_MAP_NAME}"
    )
