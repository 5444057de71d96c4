"""Signatures as their own tools make them, and real ones: keys are made here, the attestations are PyPI's.

What signs is `model-signing` itself, in the environment that agents look at signatures with. The attestations and their
files come with the source of `pypi-attestations`, pinned by digest: Sigstore signed them, and nobody here could.
"""

import asyncio
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.pages import find_file
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines.environments import Environment
from covey_agent.engines.recipes import signatures_recipe
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kit.artifact_rig import ignore
from kit.cache import shared_cache

_SDIST = "pypi_attestations-0.0.30.tar.gz"
_SDIST_SHA256 = "14ff13c76bbef02a483c2b77532da02bfd746b5141b881f355e06b9807434423"
_SDIST_BYTES = 139_108
# A file with real attestations, by this workflow of its repository.
ATTESTED = "pypi_attestations-0.0.19.tar.gz"
ATTESTED_SHA256 = "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3"
IDENTITY = "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml@refs/tags/v0.0.19"
ISSUER = "https://token.actions.githubusercontent.com"
# A wheel with a real provenance.
WHEEL = "circleci_sign_publish_example-0.0.1.dev137-py3-none-any.whl"

_SIGN = """
import sys
sys.path.append(sys.argv[1])
from pathlib import Path
from model_signing.signing import Config
how, what, to, *files = sys.argv[2:]
paths = [Path(each) for each in files]
if how == "key":
    config = Config().use_elliptic_key_signer(private_key=paths[0])
else:
    config = Config().use_certificate_signer(
        private_key=paths[0], signing_certificate=paths[1], certificate_chain=[paths[2]]
    )
config.sign(Path(what), Path(to))
"""


def provide_packages() -> Path:
    """The packages that look at signatures, in the tests' shared cache."""
    recipe = signatures_recipe()
    assert recipe is not None

    async def ensure() -> Path:
        web, cache = _open()
        try:
            return await Environment(recipe, web, cache, Downloader(web, cache)).ensure(ignore)
        finally:
            await web.close()

    return asyncio.run(ensure())


def provide_attested(folder: Path) -> Path:
    """A folder with real attestations and their files."""

    async def fetch() -> Path:
        web, cache = _open()
        try:
            found = await find_file(web, "pypi-attestations", _SDIST, _SDIST_SHA256)
            remote = Remote(found.url, _SDIST, _SDIST_SHA256, _SDIST_BYTES)
            return await Downloader(web, cache).download(remote, ignore)
        finally:
            await web.close()

    with tarfile.open(asyncio.run(fetch())) as archive:
        archive.extractall(folder, filter="data")
    return folder / _SDIST.removesuffix(".tar.gz") / "test" / "assets"


def _open() -> tuple[Web, Cache]:
    return Web(observe_index_settings(os.environ, Path.home()), Patience()), Cache(shared_cache())


def render_bundle(attestation: Path) -> str:
    """The Sigstore bundle that an attestation of PyPI holds, in Sigstore's own words."""
    found = json.loads(attestation.read_text())
    material, envelope = found["verification_material"], found["envelope"]
    return json.dumps(
        {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": material["certificate"]},
                "tlogEntries": material["transparency_entries"],
            },
            "dsseEnvelope": {
                "payload": envelope["statement"],
                "payloadType": "application/vnd.in-toto+json",
                "signatures": [{"sig": envelope["signature"], "keyid": ""}],
            },
        }
    )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """`sign` makes a signature with it over a file or a folder."""

    public_pem: str
    name: str
    """As messages name it."""
    authorities_pem: str
    """Of who issued its certificate."""
    sign: Callable[[Path, Path], None]
    sign_by_certificate: Callable[[Path, Path], None]


def make_key(packages: Path, folder: Path) -> SigningKey:
    folder.mkdir()
    root, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _issue("an authority", root, "an authority", root, is_authority=True)
    certificate = _issue("a signer", key, "an authority", root, is_authority=False)
    pem = serialization.Encoding.PEM
    no_password = serialization.NoEncryption()
    private, leaf, chain = folder / "key.pem", folder / "leaf.pem", folder / "root.pem"
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password))
    leaf.write_bytes(certificate.public_bytes(pem))
    chain.write_bytes(authority.public_bytes(pem))

    def run(how: str, what: Path, to: Path) -> None:
        paths = [str(each) for each in (packages, what, to, private, leaf, chain)]
        command = [sys.executable, "-I", "-S", "-c", _SIGN, paths[0], how, *paths[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(
        public_pem=public.decode(),
        name=f"the key SHA256:{hashlib.sha256(public).hexdigest()[:16]}",
        authorities_pem=chain.read_text(),
        sign=lambda what, to: run("key", what, to),
        sign_by_certificate=lambda what, to: run("certificate", what, to),
    )


def _issue(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
        .sign(by, hashes.SHA256())
    )
