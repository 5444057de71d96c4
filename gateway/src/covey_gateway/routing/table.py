"""The routing table: what is declared, where it is served, who may ask. Whole and immutable; a new one replaces it.

A client's model name resolves in its key's namespace (no key: `default`): exact alias, then Model name, then
`namespace/name`. The last reaches beyond the own namespace only without a key: a key is its namespace's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from covey_api.messages import ClientKey, Endpoint, Endpoints, Order, ServedModel, render_front_name
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.placement import RequestTimeouts

from covey_gateway.limits import MAX_SENT, OUTPUT_TOKENS
from covey_gateway.routing.quotas import NO_LIMITS, Limits

NO_ORDER = Order(term=-1, serial=-1)


@dataclass(frozen=True, slots=True)
class Front:
    """The TLS front of an endpoint on another machine."""

    host: str
    port: int
    name: str
    """What it is asked for: this attempt of this Instance, and no other."""
    node: str
    """Whose certificate it must show."""


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint. Its id changes when its engine is started anew, so that nothing of the old one sticks to it."""

    id: str
    instance_id: str
    namespace: str
    model: str
    host: str
    port: int
    key: str
    slots: int
    weight: int
    context_tokens: int | None
    confirmed: bool
    doubted: bool = False
    """Requests on it get no byte, wherever they come from."""
    engine: str = ""
    """Its program, as the Instance says; empty: nobody knows."""
    node: str = ""
    """Where it runs; empty: nobody knows."""
    front: Front | None = None
    """The way there; None: `host` and `port` are on this machine, or anybody's."""
    no_way: str = ""
    """Why there is none."""
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    most_sent: int = MAX_SENT
    """Requests that a gateway sends at a time; more wait here."""
    kv_tokens: int = 0
    """What fits into the cache that all slots share; 0: each has its own window."""
    output_tokens: int = OUTPUT_TOKENS
    """How long an answer may be that its client set no bound, where the cache is shared."""
    trial: int = 0
    """Given to a request that tries whether an endpoint that was set aside works again: which trial it is; 0: none."""


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key, known by the digest of its text."""

    namespace: str
    name: str
    digest: bytes
    expires_at: float | None
    """Seconds since the epoch."""
    models: frozenset[str] | None = None
    """Names of Models that it may ask for; None: all of its namespace."""
    limits: Limits = NO_LIMITS
    """Of the whole fleet."""
    priority: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as names are concerned."""

    namespace: str = DEFAULT_NAMESPACE
    can_cross: bool = True
    """Whether `namespace/name` of another namespace is theirs to ask for."""
    key: str = ""
    """`namespace/name` of the key that was sent; empty: none, or one that isn't ours."""
    models: frozenset[str] | None = None
    """Names of Models that are theirs to ask for; None: all."""
    priority: int = 0
    """Of its requests in line before an endpoint."""

    def may_ask(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class PlainRoute:
    """What one table has for a caller's name of a model that takes chats."""

    model: ServedModel
    targets: tuple[Target, ...]
    window_tokens: int | None
    has_pool: bool
    """Whether requests reserve of a cache that an endpoint's slots share."""


@dataclass(frozen=True, slots=True)
class RoutingTable:
    order: Order = NO_ORDER
    models: Mapping[tuple[str, str], ServedModel] = field(default_factory=dict[tuple[str, str], ServedModel])
    """By namespace and name, sorted."""
    aliases: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    targets: Mapping[tuple[str, str], tuple[Target, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[Target, ...]]
    )
    keys: Mapping[bytes, Key] = field(default_factory=dict[bytes, Key])
    """By digest."""
    gateways: tuple[str, ...] = ()
    """Among whom limits of keys are shared."""
    windows: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The widest that an endpoint has, of models of which one says."""

    sizes: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Slots x weight of the largest endpoint of each model."""

    def resolve(self, caller: Caller, asked: str) -> ServedModel | None:
        name = self.aliases.get((caller.namespace, asked), asked)
        if (model := self.models.get((caller.namespace, name))) is None:
            namespace, _, name = asked.partition("/")
            is_theirs = caller.can_cross or namespace == caller.namespace
            model = self.models.get((namespace, name)) if is_theirs else None
        return model if model is not None and caller.may_ask(model.name) else None

    def names_for(self, caller: Caller) -> dict[str, ServedModel]:
        """What this caller may ask for, by the name to ask with, sorted."""
        own = {
            name: model
            for (namespace, name), model in self.models.items()
            if namespace == caller.namespace and caller.may_ask(name)
        }
        if not caller.can_cross:
            return own
        others = {
            f"{namespace}/{name}": model
            for (namespace, name), model in self.models.items()
            if namespace != caller.namespace
        }
        return own | others


def build_table(
    order: Order,
    models: Iterable[ServedModel],
    targets: Iterable[Target],
    keys: Iterable[Key],
    gateways: tuple[str, ...] = (),
) -> RoutingTable:
    """Equal aliases and equal keys: the first by name has it (the controller refuses the others with a condition)."""
    by_name = {(model.namespace, model.name): model for model in sorted(models, key=lambda m: (m.namespace, m.name))}
    aliases: dict[tuple[str, str], str] = {}
    for (namespace, name), model in by_name.items():
        for alias in model.aliases:
            aliases.setdefault((namespace, alias), name)
    at: dict[tuple[str, str], list[Target]] = {}
    for target in sorted(targets, key=lambda target: target.id):
        at.setdefault((target.namespace, target.model), []).append(target)
    by_digest: dict[bytes, Key] = {}
    for key in sorted(keys, key=lambda key: (key.namespace, key.name)):
        by_digest.setdefault(key.digest, key)
    by_model = {model: tuple(list_) for model, list_ in at.items()}
    windows = {model: max(target.context_tokens or 0 for target in list_) for model, list_ in at.items()}
    windows = {model: window for model, window in windows.items() if window}
    sizes = {model: max(target.slots * target.weight for target in list_) for model, list_ in at.items()}
    return RoutingTable(order, by_name, aliases, by_model, by_digest, gateways, windows, sizes)


def parse_endpoints(snapshot: Endpoints, machine: str | None) -> RoutingTable:
    """The controller's snapshot as a table. `machine`: this one, as `observe_machine` says; None: none is this one."""
    return build_table(
        snapshot.order,
        snapshot.models,
        [parse_endpoint(endpoint, machine) for endpoint in snapshot.endpoints],
        [parse_key(key) for key in snapshot.keys],
        snapshot.gateways,
    )


def parse_endpoint(endpoint: Endpoint, machine: str | None) -> Target:
    front, no_way = choose_way(endpoint, machine)
    return Target(
        id=f"{endpoint.instance_id}@{endpoint.host}:{endpoint.port}",
        instance_id=endpoint.instance_id,
        namespace=endpoint.namespace,
        model=endpoint.model,
        host=endpoint.host,
        port=endpoint.port,
        key=endpoint.key,
        slots=max(1, endpoint.slots),
        weight=1,
        context_tokens=endpoint.context_tokens,
        confirmed=endpoint.confirmed,
        doubted=endpoint.doubted,
        engine=endpoint.engine,
        node=endpoint.node,
        front=front,
        no_way=no_way,
        timeouts=endpoint.timeouts,
        most_sent=max(1, endpoint.slots),
        kv_tokens=endpoint.kv_tokens,
    )


def choose_way(endpoint: Endpoint, machine: str | None) -> tuple[Front | None, str]:
    """How this gateway goes to an endpoint: its front, or straight (None), or why not at all.

    1. It is on this machine: straight.
    2. It has a front: there.
    3. Its agent doesn't say where it is (of a version without fronts, or silent since before the leader): straight, as
       ever, unless this gateway is told that nothing is on its machine.
    4. It is elsewhere and has no front: no way.
    """
    if machine and endpoint.machine == machine:
        return None, ""
    if endpoint.front_port and endpoint.address:
        name = render_front_name(endpoint.instance_id, endpoint.attempt)
        return Front(endpoint.address, endpoint.front_port, name, endpoint.node), ""
    if not endpoint.machine and machine is not None:
        return None, ""
    return None, f"it is on another machine, and its node '{endpoint.node}' opened no front for it"


def parse_key(key: ClientKey) -> Key:
    """An expiry that can't be read has passed: a gate fails closed."""
    expires_at: float | None = None
    if key.expiry is not None:
        try:
            expires_at = datetime.fromisoformat(key.expiry).timestamp()
        except ValueError:
            expires_at = 0.0
    limits = Limits(key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day, key.concurrency)
    models = None if key.models is None else frozenset(key.models)
    return Key(key.namespace, key.name, parse_hash(key.hash), expires_at, models, limits, key.priority)


def parse_hash(text: str) -> bytes:
    """The digest of `sha256:<hex>`; one that can't be read matches nothing."""
    algorithm, _, digest = text.partition(":")
    try:
        return bytes.fromhex(digest) if algorithm == "sha256" else b""
    except ValueError:
        return b""
