"""Every reason that appears in a condition, a refusal or an error: one enum per place, a line each.

Reasons are for machines, the message beside them for people. Each has a section in `docs/reference/errors.md`.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator


class ReadyReason(StrEnum):
    """Reasons of the `Ready` condition of Placement and Instance."""

    SERVING = "Serving"
    """As many ready replicas as wished."""
    PARTLY_SERVING = "PartlyServing"
    """Some replicas serve; the message says why the rest don't."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No replica is wished (`replicas: 0`, suspended, or nobody asks and `scaling.min` is 0): healthy."""
    MODEL_NOT_FOUND = "ModelNotFound"
    """`spec.modelRef.name` names no Model in the Placement's namespace."""
    GEOMETRY_PENDING = "GeometryPending"
    """A node is reading the artifact's header."""
    GEOMETRY_UNAVAILABLE = "GeometryUnavailable"
    """No node could read the artifact's header; the message has the cause."""
    NO_USABLE_ENGINE = "NoUsableEngine"
    """No node offers an engine that can run a variant; the message has the install line."""
    FACTS_PENDING = "FactsPending"
    """No node has reported its facts yet."""
    NOT_PLACED = "NotPlaced"
    """Every node was refused; the message has the closest refusal."""
    ARTIFACTS_PENDING = "ArtifactsPending"
    """Model or engine are being fetched."""
    ENGINE_STARTING = "EngineStarting"
    """The engine loads the weights or warms up."""
    MAKING_ROOM = "MakingRoom"
    """Others leave for it: of lower priority, or without requests and above their minimum; or it waits for its turn."""
    ROLLING_OUT = "RollingOut"
    """A new revision is on its way; the old one serves."""
    ENGINE_FAILED = "EngineFailed"
    """The engine ended or never became ready; the message has the cause."""
    DRAINING = "Draining"
    """No new requests; in-flight ones finish."""
    NODE_UNKNOWN = "NodeUnknown"
    """The node has been silent; what it runs may still serve."""
    WRITE_REFUSED = "WriteRefused"
    """A rule that is not Covey's forbids what a Placement needs; the message has its words."""


class ModelReason(StrEnum):
    """Reasons of the conditions of Model."""

    RESOLVED = "Resolved"
    """Artifact and geometry are known of every variant that a node here can run."""
    GEOMETRY_PENDING = "GeometryPending"
    """A node is reading the artifact's header, or none is there to read it."""
    GEOMETRY_UNAVAILABLE = "GeometryUnavailable"
    """No node could read the artifact's header; the message has the cause."""
    NO_USABLE_ENGINE = "NoUsableEngine"
    """No node offers an engine that can run a variant; the message has the install line."""
    ALIAS_CONFLICT = "AliasConflict"
    """Another Model has this name, or is older and has the same alias; this one is not reached by it."""


class NodeReason(StrEnum):
    """Reasons of the conditions of Node."""

    REPORTING = "Reporting"
    """Its agent is connected and reports."""
    FACTS_PENDING = "FactsPending"
    """It has not reported its facts yet."""
    NODE_UNKNOWN = "NodeUnknown"
    """The node has been silent; what it runs may still serve."""
    NOT_WISHED = "NotWished"
    """It runs Instances that no Placement asks for; the message names them."""
    NOT_SEALED = "NotSealed"
    """It reports Instances that the store does not know, without this controller's seal; the message names them."""
    NAME_CONTESTED = "NameContested"
    """Another machine reports under the same name; what it says is dropped."""
    ENGINE_UNUSABLE = "EngineUnusable"
    """An engine that somebody counts on there can't be started; the message says why, and what to do."""
    STORE_INCOMPLETE = "StoreIncomplete"
    """It is a store and lacks some of what Models name; the message says which, how large, and why."""
    VERSIONS_APART = "VersionsApart"
    """Its agent and the controller are more than one minor version apart; the message names both."""
    DELETING = "Deleting"
    """Its deletion was asked for: what it runs is drained."""
    DATA_PATH_OPEN = "DataPathOpen"
    """No gateway misses a way to what serves on it."""
    DATA_PATH_CLOSED = "DataPathClosed"
    """A gateway can't reach what serves on it; the message names both, the address and the ports to open."""


class FleetReason(StrEnum):
    """Reasons of the conditions of Fleet."""

    APPLIED = "Applied"
    """New Instances are made by it."""


class AccessKeyReason(StrEnum):
    """Reasons of the conditions of AccessKey."""

    ACCEPTED = "Accepted"
    """Gateways are told of it, and take it until it expires."""
    HASH_CONFLICT = "HashConflict"
    """An older AccessKey has the same hash; gateways are not told of this one."""


class EventReason(StrEnum):
    """Why the controller did something, as events show it."""

    NODE_JOINED = "NodeJoined"
    """An agent reported that has no Node yet: one was made, with an empty spec."""
    CREATED = "InstanceCreated"
    """A replica found its place."""
    ADOPTED = "InstanceAdopted"
    """A node runs an Instance that the store did not know and a Placement asks for."""
    STRAY_FOUND = "StrayFound"
    """A node runs an Instance that no Placement asks for."""
    UNSEALED_FOUND = "UnsealedFound"
    """A node reports an Instance that the store did not know and this controller did not seal."""
    NAME_CONTESTED = "NameContested"
    """Another machine reports under a node's name."""
    ENGINE_UNUSABLE = "EngineUnusable"
    """An engine can't be started on a node though somebody counts on it; the message says why, and what to do."""
    STORE_INCOMPLETE = "StoreIncomplete"
    """A store lacks some of what Models name; the message says which, how large, and why."""
    WRITE_REFUSED = "WriteRefused"
    """A rule that is not Covey's forbids what a Placement needs: an admission policy, a quota, a missing right."""
    DRAIN_STARTED = "DrainStarted"
    """An Instance takes no new request; the message says why."""
    DRAIN_ENDED = "DrainEnded"
    """Its members stop; the message says what the wait ended with."""
    DELETED = "InstanceDeleted"
    """Its members ended, or their node is lost."""
    FAILED = "InstanceFailed"
    """An attempt failed; the message has the cause."""
    ATTEMPT_STARTED = "AttemptStarted"
    """A failed Instance is tried again where it was."""
    LOST = "InstanceLost"
    """Its node has been silent beyond the grace: a replacement is placed."""
    DOUBTED = "InstanceDoubted"
    """Requests on it get no byte: its node looks whether the engine still generates."""
    DATA_PATH_CLOSED = "DataPathClosed"
    """A gateway can't reach what serves on a node; the message has the address and the ports to open."""
    DATA_PATH_OPENED = "DataPathOpened"
    """Every gateway reaches what serves on the node again."""
    HEADER_READ = "HeaderRead"
    """A node read the artifact's header."""
    HEADER_UNREAD = "HeaderUnread"
    """A node could not read the artifact's header."""
    CALIBRATED = "EstimateCalibrated"
    """Loads took another amount of memory than is computed: new Instances are stamped with another factor."""
    UNREADABLE = "ObjectUnreadable"
    """A stored object is another version's: this one can't read it, and changes nothing that runs by it."""


class RefusalReason(StrEnum):
    """Why one node is not chosen for one Placement."""

    CORDONED = "Cordoned"
    """`spec.unschedulable` is true."""
    TAINTED = "Tainted"
    """A taint in `spec.taints` of the Node is not tolerated by `spec.nodes.tolerations` of the Placement."""
    NOT_SELECTED = "NotSelected"
    """`spec.nodes.selector` or `include` of the Placement leaves it out."""
    EXCLUDED = "Excluded"
    """`spec.nodes.exclude` of the Placement names it."""
    NODE_UNKNOWN = "NodeUnknown"
    """It is silent."""
    FACTS_PENDING = "FactsPending"
    """It has not reported its facts yet."""
    NO_USABLE_ENGINE = "NoUsableEngine"
    """It offers no lane that can run a variant of the Model."""
    OFFLINE = "Offline"
    """It fetches nothing from outside the fleet, and no node has the files."""
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    """Weights and fixed costs do not fit beside what is reserved."""
    CONTEXT_TOO_SMALL = "ContextTooSmall"
    """The window that fits is smaller than the Placement asks for."""
    RECENT_FAILURE = "RecentFailure"
    """This revision failed on it (`status.failures`)."""


class FailureCause(StrEnum):
    """Why a member of an Instance ended or was refused, as agent and keeper saw it."""

    EXITED = "Exited"
    """The engine exited by itself with a code."""
    KILLED = "Killed"
    """The engine was ended by a signal that Covey didn't send."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The kernel or the engine itself ended for lack of memory."""
    NOT_READY_IN_TIME = "NotReadyInTime"
    """No token before the start-up deadline."""
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    """The agent's check against fresh memory refused to spawn it."""
    ARTIFACT_UNAVAILABLE = "ArtifactUnavailable"
    """A source can't be reached or doesn't have the file."""
    ARTIFACT_CORRUPT = "ArtifactCorrupt"
    """A digest, size or checksum differs; nothing was installed."""
    SIGNATURE_REFUSED = "SignatureRefused"
    """The file has not the signature that its Model demands; no engine got it."""
    NO_USABLE_ENGINE = "NoUsableEngine"
    """The engine can't be provisioned here; the message has the install line."""
    MISSING_LIBRARY = "MissingLibrary"
    """The engine can't load a shared library; the message names the package."""
    DISK_FULL = "DiskFull"
    """There is no room for the artifact."""
    NEVER_REPORTED = "NeverReported"
    """The agent did not report the member within the deadline."""
    KEEPER_LOST = "KeeperLost"
    """The keeper ended without an exit record."""
    PORT_TAKEN = "PortTaken"
    """Another process had the engine's port before the engine did; it is started again on another one."""
    WEDGED = "Wedged"
    """The engine's process lives, and nothing of it generates any more."""
    NEIGHBOUR_ENDED = "NeighbourEnded"
    """Another member of the same attempt ended, or could not be reached: the message names it."""


def _known_or(other: FailureCause) -> Callable[[object], object]:
    """A cause that this version doesn't know is read as `other`: the message beside it keeps the words. A report that
    is refused whole for it would lose the node."""

    known = frozenset(each.value for each in FailureCause)

    def read(value: object) -> object:
        return other if isinstance(value, str) and value not in known else value

    return read


# As agents tell them, which may be of a newer version than who reads it.
ReportedCause = Annotated[FailureCause, BeforeValidator(_known_or(FailureCause.EXITED))]
ReportedEngineCause = Annotated[FailureCause, BeforeValidator(_known_or(FailureCause.NO_USABLE_ENGINE))]


class ErrorCode(StrEnum):
    """`error.code` in the gateway's answers, whatever the wire format."""

    MODEL_NOT_FOUND = "model_not_found"
    MODEL_LOADING = "model_loading"
    MODEL_UNAVAILABLE = "model_unavailable"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    INVALID_REQUEST = "invalid_request"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_FIELD = "unsupported_field"
    TASK_NOT_SUPPORTED = "task_not_supported"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_ENDED = "upstream_ended"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    OVERLOADED = "overloaded"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    REQUEST_CANCELLED = "request_cancelled"
