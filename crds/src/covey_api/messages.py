"""What crosses between our own parts (`/fleet/v1`): state, not commands. Whole snapshots ordered by `(term, serial)`.

All are JSON over HTTP with mutual TLS; agents and gateways dial the controller. Unknown fields are ignored and no field
ever changes its meaning, so neighbouring versions work together.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from covey_api.access_key import KeyCounts
from covey_api.engines import Lane, UnusableEngine
from covey_api.instance import Instance, MemberPhase
from covey_api.meta import Message, Sha256
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import NodeFacts, NodeSpec
from covey_api.placement import RequestTimeouts
from covey_api.reasons import ReportedCause

FLEET_PREFIX = "/fleet/v1"

# Lines of a stream: one JSON document each; `KEEPALIVE` alone says that the sender lives.
KEEPALIVE = b"{}\n"
KEEPALIVE_SECONDS = 5.0
# A stream without a line for this long is broken: three keep-alives lost.
STREAM_SILENCE_SECONDS = 15.0
# A report follows the last one after this long at the latest; every change follows at once.
REPORT_SECONDS = 4.0
# A node that is silent for this long is Unknown: two reports lost, and time for the third to be late.
NODE_SILENCE_SECONDS = 10.0
# A request that was refused because no instance was ready, and didn't wait, counts as asking for so long: its client
# tries again within `Retry-After`, and a large model's load has begun by then.
REFUSED_COUNTS_SECONDS = 60.0
# Longest JSON body that a fleet call takes.
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_ASKS = 32
# Artifacts that a store keeps, and the files of all of them together: a snapshot is one line of at most 16 MiB.
MAX_KEPT = 1000
MAX_KEPT_FILES = 20_000
# Of their JSON, about: each store's snapshot is sent whole with every change.
MAX_KEPT_BYTES = 2 * 1024 * 1024
# Holders of a blob that a node is told of at a time: some are busy, one may be gone.
MAX_HOLDERS = 8
MAX_TRIED = 256

Seal = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
"""Made by the controller over what identifies an Instance. Empty: from a version that knew none."""


# A lie that is larger would be a number that the stores, or their clients, can't hold. Below zero is nonsense too, but
# whoever sends it by mistake isn't to end for that.
Count = Annotated[int, Field(ge=1 - 2**53, le=2**53 - 1)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Attempt = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=1 - 2**53, le=2**53 - 1, allow_inf_nan=False)]


def render_front_name(instance_id: str, attempt: int) -> str:
    """What a gateway asks a keeper's TLS front for (SNI): one attempt of one Instance. It never resolves."""
    return f"a{attempt}.{instance_id}.covey.invalid"


class MemberDoor(StrEnum):
    """What one member of an attempt wants of another's front."""

    STREAM = "stream"
    """Its engine."""
    LINK = "link"
    """Its keeper: each hears of the other's end."""


def render_member_name(instance_id: str, attempt: int, member: str, door: MemberDoor) -> str:
    """What another member of the same attempt asks a keeper's TLS front for (SNI). It never resolves."""
    return f"{door}.{member}.{render_front_name(instance_id, attempt)}"


class CertificateRole(StrEnum):
    AGENT = "agent"
    GATEWAY = "gateway"


class Order(Message):
    """Position of a snapshot: compare `(term, serial)`."""

    term: Annotated[int, Field(ge=-1, le=2**53 - 1)]
    """-1: before every other one."""
    serial: Annotated[int, Field(ge=-1, le=2**53 - 1)]

    def is_after(self, other: "Order") -> bool:
        return (self.term, self.serial) > (other.term, other.serial)


class JoinRequest(Message):
    """`POST join`, with server-side TLS only; the token travels as `Authorization: Bearer`."""

    role: CertificateRole
    name: Annotated[str, Field(max_length=253)]
    signing_request: Annotated[str, Field(max_length=16_384)]
    """PEM certificate signing request; its key never leaves the joiner."""


class JoinAnswer(Message):
    """Also the answer to `POST renew`, whose body is a JoinRequest for the same role and name."""

    certificate: str
    """PEM."""
    authorities: str
    """PEM bundle to trust from now on."""
    now: float
    """The controller's clock, seconds since the epoch: skew is measured and shown."""


class MemberGoal(StrEnum):
    """What the controller wants of one member; within an attempt it only moves forward."""

    SERVE = "Serve"
    DRAIN = "Drain"
    STOP = "Stop"


class MemberFront(Message):
    """Where another member of the same attempt is reached."""

    member: Annotated[str, Field(max_length=63)]
    address: Annotated[str, Field(max_length=253)]
    port: Port
    """Of its keeper's TLS front."""


class MemberAssignment(Message):
    """One member for this node, with its whole Instance: no other object is needed to run it."""

    instance: Instance
    member: str
    goal: MemberGoal
    key: str
    """The engine's key for this Instance (HMAC of the fleet secret and the instanceId). On disk in 0600 files only."""
    seal: Seal = ""
    """Kept with the Instance, and reported with it."""
    architecture: Annotated[str, Field(max_length=64)] = ""
    """As its artifact's header names the model's kind to this engine; a build without code for it is refused before
    anything is fetched for it. Empty: not known."""
    fronts: Annotated[tuple[MemberFront, ...], Field(max_length=64)] = ()
    """Of a driver: its donors that are ready in this attempt. Of a rank: the ranks that have all they need for it, and
    a port for it. It is not started before all are there."""
    suspect_since: Annotated[str, Field(max_length=64)] = ""
    """Since when gateways doubt that its engine generates, RFC 3339; empty: they don't. Another one asks for another
    look; nobody compares it with a clock."""


class AskKind(StrEnum):
    HEADER = "Header"
    """What an artifact is: its files' digests, and the geometry that its header tells."""
    LOGS = "Logs"
    """The last output of a member's engine."""
    CAPTURE = "Capture"
    """All that its node can tell of a member: transitions, processes, metrics, output."""


class Ask(Message):
    """A question to one node; idempotent by id."""

    id: Annotated[str, Field(max_length=64)]
    kind: AskKind
    expires_seconds: float = 60.0
    source: str = ""
    """`Header`: the artifact's source."""
    sha256: str = ""
    """`Header`: the digest that the Model demands, if any."""
    instance_id: str = ""
    """`Logs`, `Capture`: of whose member."""


class AskAnswer(Message):
    """`PUT nodes/{node}/asks/{id}`. Exactly one of `error` and the kind's own field is given.

    But for a header that is sound, of a model whose memory nobody has measured: it has an `error` and no `geometry`,
    and `artifact` for those who declare the geometry.
    """

    id: str
    error: Annotated[str, Field(max_length=1024)] = ""
    artifact: ResolvedArtifact | None = None
    geometry: Geometry | None = None
    text: Annotated[str, Field(max_length=262_144)] = ""
    """`Logs`, `Capture`."""


class RefusedPeer(Message):
    """A gateway or node that was removed from the fleet, though its certificate may still be valid."""

    name: str
    begins_until: int
    """Its certificates whose validity begins by then are refused; seconds since the epoch. Later ones are good."""


class Assignments(Message):
    """Everything this node should do, whole. A line of `GET nodes/{node}/assignments`."""

    term: int
    serial: int
    complete: bool
    """False until the store has been listed and nodes have reported or timed out: nothing may be stopped before."""
    node: str
    spec: NodeSpec
    members: tuple[MemberAssignment, ...] = ()
    asks: Annotated[tuple[Ask, ...], Field(max_length=MAX_ASKS)] = ()
    refused_gateways: tuple[RefusedPeer, ...] = ()
    """By name. A change comes with the next keep-alive, under the order of the snapshot before."""
    refused_nodes: tuple[RefusedPeer, ...] = ()
    """Likewise: whom blobs aren't given to."""
    kept: Annotated[tuple[ResolvedArtifact, ...], Field(max_length=MAX_KEPT)] | None = None
    """What the node keeps for the fleet, beside what its members need. None: from a version that knew nothing of it,
    and nothing changes."""

    @property
    def order(self) -> Order:
        return Order(term=self.term, serial=self.serial)


class Progress(Message):
    """How far the slowest step of a member is."""

    step: Annotated[str, Field(max_length=64)]
    """`model`, `engine`: being fetched; `load`: read by the engine."""
    done_bytes: Count = 0
    total_bytes: Count = 0
    bytes_per_second: Count = 0


class MemberReport(Message):
    """One member that this node runs or ran."""

    instance_id: str
    namespace: str
    name: str
    """The Instance's name."""
    member: str
    attempt: Attempt
    phase: MemberPhase
    port: Port = 0
    """The engine's port on loopback, while there is one."""
    front_port: Port = 0
    """Of its keeper's TLS front, at the node's `address`; 0: it has none. Of a rank that waits for the others: the port
    that is kept for it."""
    pid: Count = 0
    used_bytes: Count = 0
    """The most host memory that its keeper and engine had resident so far, in whole MiB; 0: not known."""
    cause: ReportedCause | None = None
    """One that the reader doesn't know is `Exited` to it."""
    message: Annotated[str, Field(max_length=1024)] = ""
    pool: Annotated[str, Field(max_length=63)] = ""
    """With the cause `InsufficientMemory`: which one is short. Empty: of a version that didn't say."""
    restarts: Count = 0
    progress: Progress | None = None
    instance: Instance | None = None
    """Whole, in a full report: a controller whose store is empty adopts it."""
    seal: Seal = ""
    """With the whole Instance: as it was assigned. Without the right one it is neither adopted nor routed."""


class PoolReading(Message):
    name: str
    available_bytes: Count


class UnkeptArtifact(Message):
    """What a store is to keep and hasn't got."""

    source: Annotated[str, Field(max_length=1024)]
    size_bytes: Count
    cause: ReportedCause
    """Of its last try."""


class Report(Message):
    """`POST nodes/{node}/report`, every `REPORT_SECONDS` at the latest.

    What didn't change since the last answered report is None; the first one after a start or a broken connection, or
    after `resend`, is full.
    """

    boot_id: str
    """Random per agent process."""
    sequence: Count
    version: str
    full: bool
    applied: Order | None = None
    """The newest assignments this agent acts on."""
    address: Annotated[str, Field(max_length=253)] = "127.0.0.1"
    """Address at which gateways of other machines reach this node's fronts."""
    machine: Annotated[str, Field(max_length=64)] = ""
    """What tells this loopback from every other one (`observe_machine`); empty: from a version that had no fronts."""
    facts: NodeFacts | None = None
    lanes: tuple[Lane, ...] | None = None
    readings: tuple[PoolReading, ...] = ()
    blobs: tuple[str, ...] | None = None
    """Digests of artifacts that are on this node (`ResolvedArtifact.digest`)."""
    members: tuple[MemberReport, ...] | None = None
    blobs_port: Port = 0
    """At `address`, where other nodes get blobs; 0: it gives none."""
    unusable: Annotated[tuple[UnusableEngine, ...], Field(max_length=16)] | None = None
    """Engines that can't be started there though somebody counts on them, by name."""
    unkept: Annotated[tuple[UnkeptArtifact, ...], Field(max_length=MAX_KEPT)] | None = None
    """Of a store, by source: what it was told to keep, and could not get. None likewise, or of a version that doesn't
    say."""


class ReportAnswer(Message):
    term: int
    serial: int
    resend: bool = False
    """True: the controller lacks what came before; the next report must be full."""


class Wanted(Message):
    """`POST nodes/{node}/wanted`: who else has this blob. Again every few seconds while the node waits for it, or
    fetches it from its origin."""

    sha256: Sha256
    fetching: bool = False
    """The node gets it from its origin now: nothing is asked, others are to wait for it."""
    done_bytes: Count = 0
    """With `fetching`: how many came so far."""
    passed: Annotated[str, Field(max_length=253)] = ""
    """The fetcher that this node waits for no longer: nothing more came to it for minutes."""
    tried: Annotated[tuple[str, ...], Field(max_length=MAX_TRIED)] = ()
    """Nodes that could not give it, though they were said to have it."""
    only_holders: bool = False
    """It has no origin that this node could ask: the turn there is no use to it."""


class Holder(Message):
    """A node that has a blob, and where it gives it."""

    node: str
    address: str
    port: Port


class WantedAnswer(Message):
    """Neither holders nor a fetcher: it is this node's turn at the origin."""

    holders: Annotated[tuple[Holder, ...], Field(max_length=MAX_HOLDERS)] = ()
    fetcher: str = ""
    """Another node, which gets it from its origin now."""
    fetched_bytes: Count = 0
    """How many came to it so far, as it says."""


class ModelState(StrEnum):
    READY = "Ready"
    LOADING = "Loading"
    UNAVAILABLE = "Unavailable"
    """It can't be placed or its engine fails: a wait alone doesn't help."""
    NOT_PLACED = "NotPlaced"
    """Declared, and no Placement asks for it (or it is scaled to zero)."""


class ServedModel(Message):
    """One declared Model, as gateways list it."""

    namespace: str
    name: str
    aliases: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    created: int = 0
    """Seconds since the epoch."""
    state: ModelState
    reason: str = ""
    message: str = ""
    replicas: int = 0
    progress: Progress | None = None
    retry_after_seconds: int = 5
    passes_unknown_fields: bool = False
    """Whether engines get fields of a request that nobody here knows."""
    wakes: bool = False
    """Whether it is scaled to zero and asking for it starts it."""
    hold_seconds: int = 0
    """How long a request is held while there is no endpoint; 0: it is not, waiting doesn't help."""
    weights_bytes: Count = 0
    """Of the weights of the first of its variants that a node could read; 0: none could."""
    weights_digest: str = ""
    """Their SHA-256, or that of the file they are in."""


class Endpoint(Message):
    """The routable address of a Ready Instance."""

    instance_id: str
    instance: str
    """`namespace/name`."""
    namespace: str
    model: str
    node: str
    host: str
    port: int
    key: str
    """The engine's key, sent as bearer."""
    engine: str
    slots: int
    context_tokens: int
    confirmed: bool = True
    """False while its node is silent: used only when no confirmed one is free."""
    machine: str = ""
    """As its node reported: a gateway that has the same goes to `host` and `port`, on loopback."""
    attempt: int = 0
    address: str = ""
    """Of its node, for gateways of other machines."""
    front_port: int = 0
    """Of its keeper's TLS front at `address`; 0: there is none, and it is reached on its own machine only."""
    timeouts: RequestTimeouts = RequestTimeouts()
    """As its Placement says now."""
    target: int = 0
    """Requests in flight per replica beyond which another one is wished; 0: as many as there are stay."""
    doubted: bool = False
    """True while requests on it get no byte and its node looks whether it still computes: others are used first."""
    kv_tokens: int = 0
    """What fits into the cache that all its slots share: gateways have a part of it each. 0: each slot has a window of
    its own, and fills no other's."""


class ClientKey(Message):
    """An AccessKey as gateways need it. Limits are the fleet's: each gateway has its share of them."""

    namespace: str
    name: str
    hash: str
    expiry: str | None = None
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    priority: int = 0


MAX_REQUEST_ID = 128
MAX_BOOT = 64


class Cancel(Message):
    """`POST cancel`, gateway to controller, and from there to all others: end this request wherever it is.

    What ended by then is nobody's concern; a gateway that isn't connected doesn't hear of it.
    """

    id: Annotated[str, Field(pattern=rf"^[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID}}}$")]
    """As the client named the request, in `x-request-id`, or was told."""
    key: Annotated[str, Field(max_length=128)] = ""
    """`namespace/name` of the AccessKey that wants it; empty: no key was sent. Only its own requests are ended."""


class CancelAnswer(Message):
    gateways: int
    """How many others were told."""


class Endpoints(Message):
    """Everything a gateway routes by, whole. A line of `GET endpoints`. An endpoint that drains has left the list.

    A line with `cancels` is no table, and its order is before every other: gateways that know none ignore it.
    """

    term: int
    serial: int
    models: tuple[ServedModel, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    keys: tuple[ClientKey, ...] = ()
    gateways: tuple[str, ...] = ()
    """Names of those that share the limits of keys, sorted; none where no key has any."""
    cancels: tuple[Cancel, ...] = ()

    @property
    def order(self) -> Order:
        return Order(term=self.term, serial=self.serial)


class EndpointDemand(Message):
    instance_id: str
    in_flight: Count
    unreachable: bool = False
    """This gateway set it aside: it refused, reset, or could not be reached."""
    last_byte_seconds: Seconds | None = None
    """How long ago it last gave this gateway a byte; None: not since this gateway knows it."""
    oldest_silent_seconds: Seconds | None = None
    """For how long the request in flight that waits longest has had no byte, with those before it that were given up
    without one; None: none waits for one."""
    path_failure: Annotated[str, Field(max_length=256)] = ""
    """Why this gateway finds no way to its node, after several tries in a row; empty: it has one, or didn't try."""


class ModelDemand(Message):
    """A Model that was asked for while it had no endpoint."""

    namespace: str
    name: str
    held: int = 0
    """Requests that wait for it now."""
    oldest_seconds: float = 0.0
    """For how long the oldest of these has waited."""
    refused_seconds: float | None = None
    """How long ago a request that doesn't wait was refused, of the last `REFUSED_COUNTS_SECONDS`; None: none was."""


class KeyUsage(KeyCounts):
    """The same at one gateway, since that process began: it only grows."""

    hash: Annotated[str, Field(max_length=71)]
    """The AccessKey's: one of the same name that was made anew is another key."""


class KeySpent(Message):
    """What a key with a limit of the day has spent of it, at all gateways together."""

    hash: str
    day: int
    """Days since the epoch, UTC."""
    tokens: int


class Demand(Message):
    """`POST demand`, gateway to controller: every `REPORT_SECONDS` at the latest.

    At once when a table was applied, an endpoint that left the table has no request in flight any more, or a Model
    without an endpoint is asked for.
    """

    gateway: str
    address: str
    """Where clients reach it: `http://127.0.0.1:52415`."""
    applied: Order | None = None
    endpoints: tuple[EndpointDemand, ...] = ()
    """Every endpoint with requests in flight (also those that left the table), set aside, or heard of late."""
    nodes: tuple[str, ...] = ()
    """Nodes of the table's endpoints while that table is an earlier leader's: whom a lost store can't name."""
    models: tuple[ModelDemand, ...] = ()
    """By namespace and name."""
    boot: Annotated[str, Field(max_length=MAX_BOOT)] = ""
    """Random per process, as in `endpoints?boot=`: which one of this name speaks, and what `usage` has grown since."""
    usage: Annotated[tuple[KeyUsage, ...], Field(max_length=10_000)] = ()
    """Of keys whose usage this leader doesn't have yet."""


class DemandAnswer(Message):
    term: int
    serial: int
    spent: tuple[KeySpent, ...] = ()
    gateways: int = 0
    """How many are live, this one too: what they share without a table that says among whom. 0: not known."""
