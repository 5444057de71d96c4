"""The Lease as it is written, and as others see it. Pure: clocks are arguments.

Nobody's timestamps are compared with anybody's clock: a Lease is over when its record has not changed for its whole
duration on the observer's own clock, and the holder gives up earlier than that on its own.
"""

from dataclasses import dataclass
from datetime import datetime

from covey_controller.ports import MAX_TERM, LeaderAddress
from covey_controller.stores.kube.client import JsonObject

LEASE_NAME = "covey-controller"
TERM_ANNOTATION = "covey.dev/term"
FLEET_ADDRESS_ANNOTATION = "covey.dev/fleet-address"
CONTROL_ADDRESS_ANNOTATION = "covey.dev/control-address"

# An observer takes over a record that did not change for so long.
DURATION_SECONDS = 15
# The holder stops writing this long after it sent the last renewal that was answered: before an observer may begin.
GIVE_UP_SECONDS = 10.0
RENEW_SECONDS = 5.0
# What the field takes; a person may have written it, and the count decides nothing.
MAX_TRANSITIONS = (1 << 31) - 1
# After a renewal without an answer.
RETRY_SECONDS = 1.0
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the Lease says."""

    holder: str
    renewed: str
    term: int
    address: LeaderAddress
    transitions: int
    version: str
    """Its `resourceVersion`: the precondition of every write."""


def parse_lease(raw: JsonObject) -> LeaseRecord:
    """Whatever somebody wrote into it: what can't be read counts as nothing."""
    spec: JsonObject = raw.get("spec") or {}
    annotations: dict[str, str] = raw["metadata"].get("annotations") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        renewed=spec.get("renewTime") or "",
        term=_parse_term(annotations.get(TERM_ANNOTATION, "")),
        address=LeaderAddress(
            annotations.get(FLEET_ADDRESS_ANNOTATION, ""), annotations.get(CONTROL_ADDRESS_ANNOTATION, "")
        ),
        transitions=spec.get("leaseTransitions") or 0,
        version=raw["metadata"]["resourceVersion"],
    )


def _parse_term(text: str) -> int:
    """None of ours is above the bound; what is, somebody wrote, and nobody could ever lead above it."""
    is_number = text.isdecimal() and len(text) <= len(str(MAX_TERM))
    return int(text) if is_number and int(text) < MAX_TERM else 0


def render_lease(record: LeaseRecord, now: datetime, *, is_taken: bool) -> JsonObject:
    """The body that says so; `is_taken`: the holding begins with it."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    annotations = {
        TERM_ANNOTATION: str(record.term),
        FLEET_ADDRESS_ANNOTATION: record.address.fleet,
        CONTROL_ADDRESS_ANNOTATION: record.address.control,
    }
    metadata: JsonObject = {"name": LEASE_NAME, "annotations": annotations}
    if record.version:
        metadata["resourceVersion"] = record.version
    spec: JsonObject = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": DURATION_SECONDS,
        "renewTime": stamp,
        "leaseTransitions": record.transitions,
    }
    if is_taken:
        spec["acquireTime"] = stamp
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


@dataclass(slots=True)
class LeaseWatch:
    """How long the record has not changed, on our own clock."""

    seen: tuple[str, str] | None = None
    since: float = 0.0

    def observe(self, record: LeaseRecord, now: float) -> bool:
        """True when nobody holds it, or its holder is silent for its whole duration."""
        present = (record.holder, record.renewed)
        if present != self.seen:
            self.seen, self.since = present, now
        return not record.holder or now - self.since >= DURATION_SECONDS
