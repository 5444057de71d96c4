"""A static table, for a gateway without a controller: `covey gateway --table FILE` (YAML or JSON).

It is read once, at start, and strictly: what is wrong in it is said, not skipped. Everything in it is in the namespace
`default`, so its keys and models belong together.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from covey_api.access_key import (
    KEY_HASH_PATTERN,
    Concurrency,
    KeyPriority,
    RequestsPerMinute,
    TokensPerDay,
    TokensPerMinute,
)
from covey_api.messages import ClientKey, ModelState, Order, ServedModel
from covey_api.meta import DEFAULT_NAMESPACE, Document
from pydantic import Field, ValidationError, model_validator

from covey_gateway.failures import StartError
from covey_gateway.limits import MAX_SENT, OUTPUT_TOKENS
from covey_gateway.routing.table import RoutingTable, Target, build_table, parse_key

# A thousand models with endpoints are some hundred kB.
MAX_TABLE_BYTES = 4 * 1024 * 1024
# One table, never replaced.
_ORDER = Order(term=0, serial=0)

_ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=253)]
_Task = Literal["Chat", "Embedding", "Rerank", "Vision"]
_URL = r"^http://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?$"


class _Loader(yaml.SafeLoader):
    """Times stay the text they are, as in Kubernetes."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (as in its base class)
        first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class TableEndpoint(Document):
    url: Annotated[str, Field(pattern=_URL, max_length=255)]
    """`http://HOST:PORT` of an engine that speaks OpenAI's chat completions."""
    slots: Annotated[int, Field(ge=1, le=4096)] = 4
    """Requests it runs at a time. Where it is given, no more are sent at a time."""
    kv_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """What fits into the cache that all its slots share (`llama-server --kv-unified`: its `-c`); 0: each slot has a
    window of its own. Gateways that share it without a controller have a part each, written here."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Its share of the traffic per slot, relative to the model's other endpoints."""


class TableModel(Document):
    name: _ModelName
    aliases: Annotated[tuple[_ModelName, ...], Field(max_length=64)] = ()
    context_tokens: Annotated[int, Field(ge=1)] | None = None
    """Shown in GET /v1/models; the engine itself refuses what is too long."""
    output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = OUTPUT_TOKENS
    """How long an answer may be that its client set no bound, at endpoints with `kvTokens`."""
    tasks: Annotated[tuple[_Task, ...], Field(min_length=1, max_length=4)] = ("Chat",)
    """What its engines do."""
    endpoints: Annotated[tuple[TableEndpoint, ...], Field(min_length=1, max_length=1024)]


class TableKey(Document):
    name: _ModelName
    hash: Annotated[str, Field(pattern=KEY_HASH_PATTERN, max_length=71)]
    """`sha256:` and the hex digest of the whole key."""
    expiry: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")] | None = None
    """UTC; refused from then on. When absent: never."""
    models: Annotated[tuple[_ModelName, ...], Field(min_length=1, max_length=256)] | None = None
    """Models that it may ask for, by their names. When absent: all."""
    requests_per_minute: RequestsPerMinute | None = None
    tokens_per_minute: TokensPerMinute | None = None
    tokens_per_day: TokensPerDay | None = None
    """Counted anew when the gateway starts: without a controller nobody keeps it."""
    concurrency: Concurrency | None = None
    priority: KeyPriority = 0
    """Of its requests where they wait; higher goes first."""


class TableDocument(Document):
    models: Annotated[tuple[TableModel, ...], Field(min_length=1, max_length=10_000)]
    keys: Annotated[tuple[TableKey, ...], Field(max_length=10_000)] = ()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """A name or alias means one model."""
        owners: dict[str, int] = {}
        for index, model in enumerate(self.models):
            for name in (model.name, *model.aliases):
                if owners.setdefault(name, index) != index:
                    raise ValueError(f"'{name}' must name one model; it names models[{owners[name]}] and [{index}]")
        return self


def load_table(path: Path) -> RoutingTable:
    """StartError names the file, the field, what was found and what must hold."""
    return parse_table(read_table(path), str(path))


def read_table(path: Path) -> bytes:
    """StartError where that isn't possible."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartError(f"`--table` must be a readable file; '{path}': {error.strerror}") from None
    if len(content) > MAX_TABLE_BYTES:
        raise StartError(f"{path}: a table must have at most {MAX_TABLE_BYTES} bytes; it has {len(content)}")
    return content


def parse_table(content: bytes, name: str) -> RoutingTable:
    try:
        read: Any = yaml.load(content, _Loader)  # noqa: S506  (a SafeLoader)
        document = TableDocument.model_validate(read)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise StartError(f"{name}: it must be YAML or JSON: {error}") from None
    except ValidationError as error:
        raise StartError(f"{name}: {_explain(error)}") from None
    targets = [_render_target(model, endpoint) for model in document.models for endpoint in model.endpoints]
    keys = [parse_key(ClientKey(namespace=DEFAULT_NAMESPACE, **key.model_dump())) for key in document.keys]
    return build_table(_ORDER, [_render_model(model) for model in document.models], targets, keys)


def _render_model(model: TableModel) -> ServedModel:
    return ServedModel(
        namespace=DEFAULT_NAMESPACE,
        name=model.name,
        aliases=model.aliases,
        tasks=model.tasks,
        state=ModelState.READY,
        replicas=len(model.endpoints),
    )


def _render_target(model: TableModel, endpoint: TableEndpoint) -> Target:
    host, _, port = endpoint.url.removeprefix("http://").rstrip("/").rpartition(":")
    return Target(
        id=f"{model.name}@{host}:{port}",
        instance_id=f"{model.name}@{host}:{port}",
        namespace=DEFAULT_NAMESPACE,
        model=model.name,
        host=host.strip("[]"),
        port=int(port),
        key="",
        slots=endpoint.slots,
        weight=endpoint.weight,
        context_tokens=model.context_tokens,
        confirmed=True,
        most_sent=endpoint.slots if "slots" in endpoint.model_fields_set else MAX_SENT,
        kv_tokens=endpoint.kv_tokens,
        output_tokens=model.output_tokens,
    )


def _explain(error: ValidationError) -> str:
    """The first three faults; more at once help nobody."""
    faults = error.errors(include_url=False)
    lines = [_explain_fault(fault["loc"], fault["type"], fault["msg"], fault["input"]) for fault in faults[:3]]
    return "; ".join(lines) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")


def _explain_fault(location: tuple[int | str, ...], kind: str, words: str, found: Any) -> str:
    field = ""
    for part in location:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else part
    if kind == "extra_forbidden":
        return f"`{field}` is no field of a table; remove it"
    if kind == "missing":
        return f"`{field}` must be given"
    if kind == "value_error":
        return words.removeprefix("Value error, ")
    return f"`{field or 'the document'}`: {words}; got {str(found)[:100]!r}"
