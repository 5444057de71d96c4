"""The program that looks at signatures:

    python -I -S verify.py PACKAGES REQUEST

`REQUEST` is a file with JSON: what is to be looked at. The last line that is printed is the answer: `{"by": …}`, or
`{"refused": …}` with what was expected and found, or `{"unread": …}` where a provenance can't be read. It runs in
a process and an environment of its own, because it reads what strangers wrote, by libraries that the agent needs for
nothing else (ADR 53). It needs no network: keys come with the request, Sigstore's root with its library.

No file of the model is read here. The agent has found each file's sha256; what is asked is whether a signer named the
same ones. So a signature over a folder does for a model of which only some files are needed, and one in the format of
other tools too, as long as it lists whole files by sha256.
"""

import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_OMS = frozenset({"https://model_signing/signature/v1.0", "https://model_signing/Digests/v0.1"})
# Statements by which somebody says that a file is theirs. Others name files too, such as reports of what is wrong.
_SUBJECTS = frozenset(
    {
        "https://slsa.dev/provenance/v1",
        "https://docs.pypi.org/attestations/publish/v1",
        "https://sigstore.dev/cosign/sign/v1",
    }
)
_IN_TOTO = "application/vnd.in-toto+json"
# A name in a signature of one file alone.
_ITSELF = "."
_NAMED = 3
# Digits of a key's digest.
_SHOWN = 16
# Fields of a bundle that say with what it was made.
_MAKERS = {
    "publicKey": "a key",
    "x509CertificateChain": "a certificate with its chain",
    "certificate": "a certificate",
}

Json = dict[str, Any]


class Refused(Exception):
    """What was expected and what was found."""


class Unread(Exception):
    """It says nothing that this version understands, neither for nor against."""


def main(packages: str, request_path: str) -> int:
    sys.path.append(packages)
    request: Json = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        by = check_provenance(request) if "provenance" in request else check_signature(request)
    except Refused as refused:
        print(json.dumps({"refused": str(refused)}))
    except Unread as unread:
        print(json.dumps({"unread": str(unread)}))
    else:
        print(json.dumps({"by": by}))
    return 0


def check_signature(request: Json) -> str:
    """Whose of the signers it is. Refused unless it names every file by its sha256."""
    signers: list[Json] = request["signers"]
    reasons: list[str] = []
    made_with, hint = _find_maker(request["signature"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signature"
        path.write_text(request["signature"], encoding="utf-8")
        for signer in signers:
            try:
                _check_maker(signer, made_with, hint)
                statement = _read_statement(signer, path, request["files"])
            except Refused as refused:
                reasons.append(str(refused))
                continue
            if statement is not None:
                compare(request["files"], list_signed(statement))
            return describe(signer)
    expected = " or ".join(describe(signer) for signer in signers)
    raise Refused(f"it must be signed by {expected}; what was found: {'; '.join(reasons)}")


def _find_maker(text: str) -> tuple[str, str]:
    """What the signature says that it was made with: the field, and a key's digest."""
    try:
        bundle: Any = json.loads(text)
        material: Json = bundle["verificationMaterial"]
        is_whole = "dsseEnvelope" in bundle or "messageSignature" in bundle
        made_with = next(kind for kind in _MAKERS if kind in material and is_whole)
        hint = material[made_with].get("hint", "") if made_with == "publicKey" else ""
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
        # None of it is quoted: a Model may name any file that the agent can read, and many read what it says.
        raise Refused(
            "it must be a Sigstore bundle in JSON, as `model_signing sign` or `cosign sign-blob --bundle` write it; it "
            f"is none (it has {len(text)} characters)"
        ) from error
    return made_with, hint if isinstance(hint, str) else ""


def _check_maker(signer: Json, made_with: str, hint: str) -> None:
    """Refused where it says of itself that somebody else made it: better words than a library has for it."""
    if ("publicKey" in signer) != (made_with == "publicKey"):
        raise Refused(f"a signature by {_MAKERS[made_with]}")
    if "publicKey" in signer and hint and _name_key(hint) != _fingerprint(signer["publicKey"]):
        raise Refused(f"a signature by the key {_name_key(hint)}")


def describe(signer: Json) -> str:
    if "publicKey" in signer:
        return f"the key {_fingerprint(signer['publicKey'])}"
    if "authorities" in signer:
        return "a certificate of the named authorities"
    return f"'{signer['sigstore']['identity']}' of {signer['sigstore']['issuer']}"


def _fingerprint(pem: str) -> str:
    """As signatures name the key that made them, and as `openssl pkey -pubin -in KEY | sha256sum` has it."""
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except ValueError as error:
        raise Refused("`publicKey` must be a public key in PEM; it can't be read as one") from error
    normal: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _name_key(hashlib.sha256(normal).hexdigest())


def _name_key(digest: str) -> str:
    return f"SHA256:{digest[:_SHOWN]}"


def _read_statement(signer: Json, path: Path, files: Mapping[str, str]) -> Json | None:
    """What this signer signed; None: these bytes of one file, which is all that there is to say. Refused if it isn't
    theirs."""
    try:
        if "sigstore" in signer:
            return _read_by_identity(signer["sigstore"], path, files)
        kind, payload = _read_by_key(signer, path)
        return _parse_statement(kind, payload)
    except Refused:
        raise
    except Exception as error:
        # Whatever a library raises over bytes of a stranger: it is no signature of theirs.
        words = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise Refused(f"as one by {describe(signer)} it doesn't hold: {words}") from error


def _read_by_key(signer: Json, path: Path) -> tuple[str, bytes]:
    bundles = importlib.import_module("model_signing._signing.sign_sigstore_pb")
    trusted = path.with_name("trusted")
    trusted.write_text(signer.get("publicKey") or signer["authorities"], encoding="utf-8")
    if "publicKey" in signer:
        verifier = importlib.import_module("model_signing._signing.sign_ec_key").Verifier(trusted)
    else:
        verifier = importlib.import_module("model_signing._signing.sign_certificate").Verifier([trusted])
    signature = bundles.Signature.read(path)
    if len(signature.bundle.dsse_envelope.signatures) != 1:
        raise Refused("it must be a Sigstore bundle with one signed statement, as `model_signing sign` writes it")
    return verifier._verify_signed_content(signature)


def _read_by_identity(named: Mapping[str, str], path: Path, files: Mapping[str, str]) -> Json | None:
    models = importlib.import_module("sigstore.models")
    verify = importlib.import_module("sigstore.verify")
    bundle = models.Bundle.from_json(path.read_text(encoding="utf-8"))
    verifier = verify.Verifier.production(offline=True)
    policy = verify.policy.Identity(identity=named["identity"], issuer=named["issuer"])
    if bundle._dsse_envelope is not None:
        return _parse_statement(*verifier.verify_dsse(bundle, policy))
    if len(files) != 1:
        raise Refused(f"it is over the bytes of one file, and the model has {len(files)}")
    hashes = importlib.import_module("sigstore.hashes")
    algorithm = importlib.import_module("sigstore_models.common.v1").HashAlgorithm.SHA2_256
    digest = bytes.fromhex(next(iter(files.values())))
    verifier.verify_artifact(hashes.Hashed(algorithm=algorithm, digest=digest), bundle, policy)
    return None


def _parse_statement(kind: str, payload: bytes) -> Json:
    if kind != _IN_TOTO:
        raise Refused(f"it must hold a statement of type '{_IN_TOTO}'; it holds '{kind}'")
    return json.loads(payload)


def list_signed(statement: Json) -> dict[str, set[str]]:
    """sha256 by path, as signed."""
    kind = statement.get("predicateType")
    if kind in _OMS:
        manifest = importlib.import_module("model_signing._signing.signing").dsse_payload_to_manifest(statement)
        pairs = [(each.identifier, each.digest.algorithm, each.digest.digest_hex) for each in _descriptors(manifest)]
        if others := {algorithm for _, algorithm, _ in pairs} - {"sha256"}:
            raise Refused(f"must list whole files by sha256; the signature lists {', '.join(sorted(others))}")
    elif kind in _SUBJECTS:
        pairs = [
            (each.get("name") or _ITSELF, "sha256", each.get("digest", {}).get("sha256", ""))
            for each in statement["subject"]
        ]
    else:
        raise Refused(f"must be a model's signature or a file's provenance; the signature is a statement '{kind}'")
    found: dict[str, set[str]] = {}
    for name, _, digest in pairs:
        found.setdefault(str(PurePosixPath(name)), set()).add(digest)
    return found


def _descriptors(manifest: Any) -> list[Any]:
    return list(manifest.resource_descriptors())


def compare(files: Mapping[str, str], signed: Mapping[str, set[str]]) -> None:
    """Refused unless each file is among what was signed, by path and digest. More may be signed than is needed."""
    wrong: list[str] = []
    for name, digest in sorted(files.items()):
        named = _find_digests(name, signed)
        if len(files) == 1:
            named = named | signed.get(_ITSELF, set[str]())
        if digest not in named:
            what = " or ".join(sorted(named)) or "no such file"
            wrong.append(f"'{name}' must have sha256 {what} as signed; it has {digest}")
    if wrong:
        more = f"; and {len(wrong) - _NAMED} more files" if len(wrong) > _NAMED else ""
        raise Refused("; ".join(wrong[:_NAMED]) + more)


def _find_digests(path: str, signed: Mapping[str, set[str]]) -> set[str]:
    """Of the same path; else of the same name elsewhere, since a folder may be signed by itself, or a file be taken out
    of one. Refused where this name stands for several files: any of them could be given as another."""
    if path in signed:
        return signed[path]
    name = PurePosixPath(path).name
    alike = sorted(each for each in signed if PurePosixPath(each).name == name)
    found = set[str]().union(*(signed[each] for each in alike))
    if len(alike) > 1 and len(found) > 1:
        more = ", …" if len(alike) > _NAMED else ""
        shown = ", ".join(f"'{each}'" for each in alike[:_NAMED])
        raise Refused(f"must list '{path}'; the signature lists several of that name: {shown}{more}")
    return found


def check_provenance(request: Json) -> str:
    """Who published a file of a package index, as its provenance (PEP 740) says. Refused unless all of it is so; Unread
    if it is a page of something else, or names publishers of a kind that isn't known here."""
    attestations = importlib.import_module("pypi_attestations")
    named = {"filename": request["filename"], "sha256": request["sha256"]}
    try:
        provenance = attestations.Provenance.model_validate_json(request["provenance"])
    except ValueError as error:
        raise Unread(
            f"must be a provenance of version 1 (PEP 740); it can't be read as one ({_first(error)})"
        ) from error
    try:
        file = attestations.Distribution(name=named["filename"], digest=named["sha256"])
    except ValueError as error:
        raise Refused(f"can't be held against '{named['filename']}' ({_first(error)})") from error
    bundles = provenance.attestation_bundles
    pairs = [(bundle.publisher, each) for bundle in bundles for each in bundle.attestations]
    if not pairs:
        raise Refused("must hold an attestation of its publisher; it holds none")
    names: dict[str, None] = {}
    for publisher, attestation in pairs:
        name = _describe_publisher(publisher)
        try:
            attestation.verify(publisher, file, offline=True)
        except Exception as error:
            found = _list_subjects(attestation)
            raise Refused(
                f"must be attested by {name} with sha256 {named['sha256']}; its attestation is of {found}: "
                f"{_first(error)}"
            ) from error
        names[name] = None
    return ", ".join(names)


def _describe_publisher(publisher: Any) -> str:
    fields: Json = publisher.model_dump(exclude_none=True)
    words = [
        str(fields[key]) for key in ("repository", "vcs_origin", "project_id", "email", "workflow") if key in fields
    ]
    return f"{fields.get('kind', 'a publisher')} '{' '.join(words)}'"


def _list_subjects(attestation: Any) -> str:
    try:
        subjects: list[Json] = attestation.statement["subject"]
        return ", ".join(f"'{each['name']}' with {each['digest']['sha256']}" for each in subjects[:_NAMED])
    except (KeyError, TypeError, ValueError):
        return "nothing that can be read"


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
