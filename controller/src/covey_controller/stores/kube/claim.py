"""One fleet a cluster: the leader writes into Fleet `default` whose it is, and whoever finds another's doesn't lead."""

from covey_api.fleet import Fleet, FleetClaim
from covey_api.kinds import ObjectKey
from covey_api.meta import Message, ObjectMeta

from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeError
from covey_controller.stores.kube.objects import object_path, parse_object
from covey_controller.stores.kube.sync import Sync
from covey_controller.stores.kube.writes import ObjectWriter

KEY = ObjectKey(Fleet.__name__, "", Fleet.ONLY_NAME)


class _ClaimedStatus(Message):
    claim: FleetClaim | None = None


class _Claimed(Message):
    """Of a Fleet the one part that decides who leads: settings of another version mustn't."""

    status: _ClaimedStatus = _ClaimedStatus()


class FleetClaims:
    """The claim of controllers in one namespace."""

    def __init__(self, client: KubeClient, sync: Sync, writer: ObjectWriter, claim: FleetClaim) -> None:
        self._client = client
        self._sync = sync
        self._writer = writer
        self._claim = claim

    async def why_not(self) -> str:
        """Why this cluster's fleet is another's, in words; empty if it isn't."""
        raw = await self._read()
        found = _Claimed.model_validate(raw).status.claim if raw is not None else None
        if found is None or found.namespace == self._claim.namespace:
            return ""
        return (
            f"this cluster's fleet belongs to the controllers in namespace '{found.namespace}', as Fleet '{KEY.name}' "
            f"says. If they are gone for good: kubectl patch fleet {KEY.name} --subresource=status --type=merge "
            """-p '{"status":{"claim":null}}'"""
        )

    async def ensure(self) -> None:
        """Claim it, if this version can read it. Conflict if somebody was quicker: look again."""
        raw = await self._read()
        if raw is None:
            raw = await self._writer.apply_new(Fleet(metadata=ObjectMeta(name=KEY.name)))
            self._sync.observe(Fleet, raw)
        fleet, _ = parse_object(Fleet, raw)
        if not isinstance(fleet, Fleet):
            return
        if fleet.status.claim is None or fleet.status.claim.namespace == self._claim.namespace:
            observed = {"claim": self._claim, "observed_generation": fleet.metadata.generation}
            await self._writer.apply_status(KEY, fleet.status.model_copy(update=observed))

    async def _read(self) -> JsonObject | None:
        try:
            raw = await self._client.request("GET", object_path(KEY))
        except KubeError as error:
            if error.is_missing:
                return None
            raise
        self._sync.observe(Fleet, raw)
        return raw
