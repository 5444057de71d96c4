"""Builders of what the planner is asked, valid by default: SmolLM2 on nodes with 16 GiB."""

from dataclasses import replace
from typing import Any

from covey_api.engines import ArtifactFormat, EngineName, KvCacheType
from covey_api.model import Geometry, ResolvedArtifact
from covey_planner.types import Chosen, NodeState, NodeView, Pool, VariantView, Wish

from kit.builders import artifact, geometry, lane

GIB = 2**30
MIB = 2**20


def variant(name: str = "gguf-q4-1", **changes: Any) -> VariantView:
    """A variant whose header has been read."""
    known = VariantView(name, ArtifactFormat.GGUF, (EngineName.LLAMA_SERVER,), geometry(), artifact())
    return replace(known, **changes)


def wish(**changes: Any) -> Wish:
    plain = Wish(
        placement="smollm2",
        model="smollm2",
        variants=(variant(),),
        engines=(),
        selector={},
        include=frozenset(),
        exclude=frozenset(),
        failed=frozenset(),
        context_tokens=None,
        min_context_tokens=None,
        model_context_tokens=None,
        slots=4,
        kv_cache_type=KvCacheType.F16,
        workspace_bytes=0,
    )
    return replace(plain, **changes)


def node(name: str = "a", *, memory: int = 16 * GIB, reserve: int = GIB, reserved: int = 0, **changes: Any) -> NodeView:
    plain = NodeView(
        name=name,
        state=NodeState.READY,
        schedulable=True,
        labels={},
        lanes=(lane(digest="0" * 64),),
        pools=(Pool("Host", memory, reserve, reserved),),
        cpu_cores=8,
        cached=frozenset(),
    )
    return replace(plain, **changes)


def large_geometry(**changes: object) -> Geometry:
    """A model of 8 billion parameters with grouped heads and a long window."""
    fields: dict[str, object] = {
        "parameter_count": 8_000_000_000,
        "weights_bytes": 5 * GIB,
        "layer_count": 32,
        "context_tokens": 131_072,
        "embedding_length": 4096,
        "feed_forward_length": 14_336,
        "head_count": 32,
        "vocabulary_size": 128_256,
        "kv_head_counts": (8,) * 32,
        "key_length": 128,
        "value_length": 128,
        "token_embedding_bytes": 300 * MIB,
    }
    return geometry(**(fields | changes))


def large_variant(name: str = "gguf-q4-k-m", **changes: Any) -> VariantView:
    digest = ResolvedArtifact(
        source="file:///models/large.gguf", name="large.gguf", size_bytes=5 * GIB, sha256="b" * 64
    )
    return replace(variant(name, geometry=large_geometry(), artifact=digest), **changes)


def taken_bytes(chosen: tuple[Chosen, ...], name: str, pool: str = "Host") -> int:
    """What a decision takes of one pool of one node."""
    return sum(
        costs.total_bytes for entry in chosen if entry.node == name for costs in entry.costs if costs.pool == pool
    )
