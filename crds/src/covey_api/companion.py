"""Companions: other files that an engine loads beside the weights, each of another role."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from covey_api.engines import EngineName
from covey_api.kinds import cel
from covey_api.meta import Message, Sha256
from covey_api.source import SIGNATURE_PATTERN, SOURCE_PATTERN, UNVOUCHED_PATTERN


class CompanionRole(StrEnum):
    PROJECTOR = "Projector"
    """Makes tokens of images (`mmproj`)."""
    DRAFT = "Draft"
    """A smaller model that guesses tokens, which the model then checks several at a time."""


# What each engine is started with; others load none.
LOADED_BY: Mapping[EngineName, frozenset[CompanionRole]] = {
    EngineName.LLAMA_SERVER: frozenset(CompanionRole),
    EngineName.MLX: frozenset({CompanionRole.DRAFT}),
}

# What the header of a projector's file gives as its architecture; no model's does.
PROJECTOR_ARCHITECTURE = "clip"


VOUCHED = (
    f"!self.source.matches('{UNVOUCHED_PATTERN}') || has(self.sha256)",
    "`sha256` must be given with an 'https://' source: nothing else says what the file must be",
)
# CEL rules with their messages: which engines load companions, and which tasks they are for.
VARIANT_RULE = (
    "(!has(self.projector) || self.engines.all(e, e == 'LlamaServer')) && "
    "(!has(self.draft) || self.engines.all(e, e in ['LlamaServer', 'Mlx']))",
    "`engines` of a variant with `projector` must be ['LlamaServer'], and with `draft` ['LlamaServer'] or ['Mlx']: no "
    "other engine loads them. Others can have a variant of their own, without",
)
MODEL_RULES = (
    (
        "!('Vision' in self.tasks) || self.variants.all(v, has(v.projector))",
        "with the task 'Vision' each of `spec.variants` must name a `projector`",
    ),
    (
        "'Vision' in self.tasks || !self.variants.exists(v, has(v.projector))",
        "`spec.tasks` must have 'Vision' where one of `spec.variants` names a `projector`: without it no image reaches "
        "the engine",
    ),
    (
        "size(self.tasks) == 0 || self.tasks[0] == 'Chat' || "
        "(!('Vision' in self.tasks) && !self.variants.exists(v, has(v.draft)))",
        "`spec.tasks` must begin with 'Chat' where it has 'Vision', or one of `spec.variants` names a `draft`",
    ),
)


class Companion(Message):
    """A file that the engine loads beside the weights."""

    model_config = ConfigDict(json_schema_extra=cel(VOUCHED))

    source: Annotated[str, Field(pattern=SOURCE_PATTERN, max_length=1024)]
    """Where it comes from, as the variant's own `source`."""
    sha256: Sha256 | None = None
    """Digest of the file; when absent, the digest that the package index or the hub publishes is the check. An
    `https://` source must have it."""
    signature: Annotated[str, Field(pattern=SIGNATURE_PATTERN, max_length=1024)] | None = None
    """Where its signature is, as the variant's own `signature`."""
