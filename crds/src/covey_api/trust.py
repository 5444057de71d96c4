"""What proof a Model's files must have: published digests, digests in the Model, or a signature of somebody named."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from covey_api.kinds import cel
from covey_api.meta import Message


class Proof(StrEnum):
    """What is taken for it that a file is the right one."""

    PUBLISHED = "Published"
    """The digest that index or hub publish, or what a path held first."""
    DIGEST = "Digest"
    """A digest in the Model, and nothing else."""
    SIGNATURE = "Signature"
    """A signature over its digest, by one of `signers`."""


class SigstoreIdentity(Message):
    """Somebody who signs without a key of their own, as Sigstore's log has it."""

    identity: Annotated[str, Field(min_length=1, max_length=512)]
    """The mail address, or the address of the workflow, in the signing certificate."""
    issuer: Annotated[str, Field(pattern=r"^https://[^\x00-\x20\x7f]+$", max_length=512)]
    """Who vouched for that identity, such as `https://token.actions.githubusercontent.com`."""


class Signer(Message):
    """One whose signature counts, by any of what is given here."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.publicKey) || has(self.authorities) || has(self.sigstore)",
                "a signer must have `publicKey`, `authorities` or `sigstore`",
            )
        )
    )

    public_key: Annotated[str, Field(pattern=r"^-----BEGIN PUBLIC KEY-----", max_length=2048)] | None = None
    """A public key on an elliptic curve, as PEM."""
    authorities: Annotated[str, Field(pattern=r"^-----BEGIN CERTIFICATE-----", max_length=16384)] | None = None
    """Certificates as PEM: one of them must have issued, by way of others or not, the certificate that comes with the
    signature."""
    sigstore: SigstoreIdentity | None = None
    """Somebody with a Sigstore identity."""


class ModelTrust(Message):
    """What proof a Model's files must have."""

    requires: Proof = Proof.PUBLISHED
    """`Published`: the `sha256` of the variant, or else what index or hub publish; `Digest`: each variant and companion
    must have its `sha256`, or a `store://` source, which is its digest; `Signature`: each must have a `signature`, by
    one of `signers`. A file with another digest is never given to an engine, whoever it came from; neither is one
    without the signature."""
    signers: Annotated[tuple[Signer, ...], Field(max_length=4)] = ()
    """Whose signature counts: any of them."""


class SignedBy(Message):
    """The signature that an artifact must have."""

    signature: Annotated[str, Field(max_length=1024)]
    """Where it is."""
    signers: Annotated[tuple[Signer, ...], Field(max_length=4)]
    """Whose it may be."""


_IN_STORE = "matches(r'^store://')"  # such a source is its digest
TRUST_RULE = (
    "!has(self.trust) || !has(self.trust.requires) || self.trust.requires != 'Digest' || self.variants.all(v, "
    f"(has(v.sha256) || v.source.{_IN_STORE}) && "
    f"(!has(v.projector) || has(v.projector.sha256) || v.projector.source.{_IN_STORE}) && "
    f"(!has(v.draft) || has(v.draft.sha256) || v.draft.source.{_IN_STORE}))",
    "where `spec.trust.requires` is 'Digest' each of `spec.variants`, its `projector` and its `draft` must have "
    "`sha256`, or a `store://` source",
)
SIGNATURE_RULE = (
    "!has(self.trust) || !has(self.trust.requires) || self.trust.requires != 'Signature' || "
    "(has(self.trust.signers) && size(self.trust.signers) > 0 && self.variants.all(v, has(v.signature) && "
    "(!has(v.projector) || has(v.projector.signature)) && (!has(v.draft) || has(v.draft.signature))))",
    "where `spec.trust.requires` is 'Signature' it must name `signers`, and each of `spec.variants`, its `projector` "
    "and its `draft` must have a `signature`",
)
