"""How the controller logs in to the API server: files that the kubelet puts into a pod, or a kubeconfig.

Everything here reads files and blocks; callers run it in a thread. Rejected: kopf's own login functions (they find the
kubeconfig by the environment alone, know no `tokenFile`, and need DNS in the pod), and running a kubeconfig's `exec`
plugin (a controller that needs a person's login would stop when the person's session ends).
"""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

PartT = TypeVar("PartT")
SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class InvalidLogin(ValueError):
    """The files don't say how to log in."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What was read from the files; two are equal when nothing changed."""

    server: str
    """`https://HOST:PORT`, without a slash at the end."""
    namespace: str
    authority: str
    """PEM of the certificates that the API server may be signed by; empty: those that the system trusts."""
    token: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)
    """PEM of a client certificate and its key; empty without one."""


@dataclass(frozen=True, slots=True)
class InClusterLogin:
    """As the pod's ServiceAccount. The kubelet replaces the token long before it expires."""

    folder: Path = SERVICE_ACCOUNT_FOLDER
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def read(self) -> Credentials:
        host, port = (self.environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host or not port.isdecimal():
            raise InvalidLogin(
                "`KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` must be set, as they are in a pod; "
                "outside of one, name a kubeconfig"
            )
        return Credentials(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            namespace=_read(self.folder / "namespace").strip(),
            authority=_read(self.folder / "ca.crt"),
            token=_read(self.folder / "token").strip(),
        )


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class _Cluster(_Part):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False


class _User(_Part):
    token: str = ""
    token_file: Annotated[str, Field(alias="tokenFile")] = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: object = None
    auth_provider: object = None


class _Context(_Part):
    cluster: str
    user: str
    namespace: str = ""


class _NamedCluster(_Part):
    name: str
    cluster: _Cluster


class _NamedUser(_Part):
    name: str
    user: _User


class _NamedContext(_Part):
    name: str
    context: _Context


class _Kubeconfig(_Part):
    current_context: str
    clusters: tuple[_NamedCluster, ...]
    contexts: tuple[_NamedContext, ...]
    users: tuple[_NamedUser, ...]


@dataclass(frozen=True, slots=True)
class KubeconfigLogin:
    """As the user of a kubeconfig's current context."""

    path: Path

    def read(self) -> Credentials:
        try:
            config = _Kubeconfig.model_validate(yaml.safe_load(_read(self.path)))
        except (yaml.YAMLError, ValidationError) as error:
            raise InvalidLogin(f"kubeconfig '{self.path}' can't be read: {error}") from error
        context = self._named("context", config.current_context, {each.name: each.context for each in config.contexts})
        cluster = self._named("cluster", context.cluster, {each.name: each.cluster for each in config.clusters})
        user = self._named("user", context.user, {each.name: each.user for each in config.users})
        self._refuse_unsupported(cluster, user)
        return Credentials(
            server=cluster.server.rstrip("/"),
            namespace=context.namespace,
            authority=self._pem(cluster.certificate_authority_data, cluster.certificate_authority),
            token=_read(self.path.parent / user.token_file).strip() if user.token_file else user.token,
            certificate=self._pem(user.client_certificate_data, user.client_certificate),
            key=self._pem(user.client_key_data, user.client_key),
        )

    def _named(self, what: str, name: str, entries: Mapping[str, PartT]) -> PartT:
        if name not in entries:
            raise InvalidLogin(f"kubeconfig '{self.path}' must hold {what} '{name}'")
        return entries[name]

    def _refuse_unsupported(self, cluster: _Cluster, user: _User) -> None:
        unattended = "isn't for a controller; use a ServiceAccount's token (`token` or `tokenFile`)"
        for is_found, name, words in (
            (user.exec is not None, "exec", unattended),
            (user.auth_provider is not None, "auth-provider", unattended),
            (cluster.insecure_skip_tls_verify, "insecure-skip-tls-verify", "must be false; name the authority"),
        ):
            if is_found:
                raise InvalidLogin(f"kubeconfig '{self.path}': `{name}` {words}")

    def _pem(self, inline: str, path: str) -> str:
        if not inline:
            return _read(self.path.parent / path) if path else ""
        try:
            return base64.b64decode(inline, validate=True).decode()
        except ValueError as error:
            raise InvalidLogin(f"kubeconfig '{self.path}': what ends in `-data` must be base64 of PEM") from error


Login = InClusterLogin | KubeconfigLogin


def build_tls(credentials: Credentials) -> ssl.SSLContext:
    """The client's side of TLS. Python loads a key from a file only: it is in one for that moment, readable by us."""
    try:
        context = ssl.create_default_context(cadata=credentials.authority or None)
        if credentials.certificate:
            with tempfile.NamedTemporaryFile(mode="w") as file:
                file.write(f"{credentials.certificate}\n{credentials.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidLogin(f"certificates and key for '{credentials.server}' must be PEM: {error}") from error
    return context


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidLogin(f"'{path}' must be readable, to log in to the API server; got '{error.strerror}'") from error
