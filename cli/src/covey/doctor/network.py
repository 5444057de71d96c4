"""The fleet and the indexes, as this machine reaches them."""

import asyncio
import ssl
import time
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from covey_agent.artifacts.clients import read_netrc, read_trust
from covey_agent.artifacts.hub import observe_hub_settings
from covey_agent.artifacts.index import IndexSettings, Login, observe_index_settings, origin_of
from covey_api.messages import CertificateRole
from covey_fleet_client.calls import call, open_client, parse_controller_url
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import Identity, read_identity
from covey_fleet_client.join import trusting_context
from covey_fleet_client.standing import read_refusal

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.up.left import has_controller

# As a client's that waits for one: an index that is slower makes every start slow.
_INDEX_SECONDS = 8.0
_STOPPED = "nothing that changes reaches this machine; what runs here goes on as it was last assigned"
_REFUSED = "the controller refuses this machine"
_UNREADABLE_FIX = "run this as the owner of the state folder; where that is so, join again with a new token"
_INDEX, _HUB = "the package index", "the model hub"
_CONSEQUENCES = {
    _INDEX: "models by `pypi://` and engines that aren't in the cache can't be fetched",
    _HUB: "models by `hf://` that aren't in the cache can't be fetched",
}
_ROLES = (CertificateRole.AGENT, CertificateRole.GATEWAY)


def look_at_controller(place: Place) -> list[Finding]:
    url = place.controller_url
    if place.is_own_controller:
        if has_controller(place.state):
            return [ok("controller", "the controller of this state folder listens")]
        return [ok("controller", "the controller of this state folder isn't running")]
    if not url:
        return [
            ok("controller", "this machine is in no fleet yet: `covey up DIR` begins one, `covey join URL` joins one")
        ]
    return [asyncio.run(_reach(place, url)), *_look_at_refusal(place), *_look_at_certificates(place)]


async def _reach(place: Place, url: str) -> Finding:
    """By the pinned authorities and this machine's certificate, as its agent does. Nothing is asked that counts."""
    try:
        origin = parse_controller_url(url)
        identity = _find_identity(place)
        if identity is None:
            words = f"this machine hasn't joined the fleet at {url}"
            return Finding("controller", Level.WARNING, words, "it gets nothing to run", f"`covey join {url}`")
        context = trusting_context(identity.authorities)
        context.load_cert_chain(identity.certificate_path, identity.key_path)
        async with aclosing(open_client(origin, context)) as client:
            await call(client, "GET", "authority")
    except FleetError as error:
        fix = (
            "check this machine's clock (see `clock`) and the address"
            if error.kind is FleetErrorKind.INVALID
            else "check the address, its firewall, and that it runs"
        )
        return Finding("controller", Level.BROKEN, error.message, _STOPPED, fix)
    except OSError as error:
        words = f"this machine's certificate can't be used: {error.strerror or error}"
        return Finding("controller", Level.BROKEN, words, _STOPPED, _UNREADABLE_FIX)
    return ok("controller", f"the fleet at {url} answers, and is the one that this machine joined")


def _look_at_refusal(place: Place) -> list[Finding]:
    """As its agent was told: what is asked above is answered to anybody whose certificate is the fleet's."""
    refusal = read_refusal(place.state / CertificateRole.AGENT.value)
    if refusal is None:
        return []
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(refusal.at))
    fix = "do what it says; a machine that was removed joins again with a new token"
    words = f"the controller refuses this machine's agent since {since}: {refusal.words}"
    return [Finding("controller", Level.BROKEN, words, _STOPPED, fix)]


def _find_identity(place: Place) -> Identity | None:
    for role in _ROLES:
        identity = read_identity(place.state / role.value)
        if identity is not None and identity.certificate is not None and identity.authorities:
            return identity
    return None


def _look_at_certificates(place: Place) -> list[Finding]:
    return [found for role in _ROLES if (found := _look_at_certificate(place.state / role.value, role)) is not None]


def _look_at_certificate(folder: Path, role: CertificateRole) -> Finding | None:
    """None: that part hasn't joined from here."""
    try:
        if not (folder / "certificate.pem").exists():
            return None
        identity = read_identity(folder)
    except OSError as error:
        words = f"the certificate in '{folder}' can't be read: {error.strerror or error}"
        return Finding("identity", Level.BROKEN, words, "a part of this user doesn't start", _UNREADABLE_FIX)
    if identity is None:
        words = f"'{folder}' holds a certificate and no key of it"
        return Finding("identity", Level.BROKEN, words, _REFUSED, "join again with a new token")
    return _judge_certificate(identity, role)


def _judge_certificate(identity: Identity, role: CertificateRole) -> Finding:
    now, name = time.time(), f"{role} '{identity.name}'"
    if identity.is_valid(role, identity.name, now):
        days = (identity.expires_at - now) / 86_400
        return ok(
            "identity", f"the certificate of {name} is good for {days:.0f} days; it renews itself while it serves"
        )
    if identity.certificate is not None and now >= identity.expires_at:
        words, fix = (
            f"the certificate of {name} has expired",
            "join again with a new token; if it can't be, see `clock`",
        )
    else:
        words, fix = f"the certificate of {name} isn't of this machine's key and fleet", "join again with a new token"
    return Finding("identity", Level.BROKEN, words, _REFUSED, fix)


def look_at_indexes(place: Place) -> list[Finding]:
    variables = "UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_INDEX_URL or pip.conf"
    try:
        settings = observe_index_settings(place.environment, place.home)
        findings = [_ask_index(settings)] if _is_url(settings.url) else [_unreadable_url(_INDEX, variables)]
    except ValueError:
        settings, findings = IndexSettings(url=""), [_unreadable_url(_INDEX, variables)]
    login_file = read_netrc(settings)
    if settings.netrc is not None and login_file is None:
        words = f"'{settings.netrc}' can't be read as a file of logins, so none of it is used"
        fix = "correct it: `machine HOST login USER password PASSWORD` a line; its mode must let this user read it"
        findings.append(Finding("index", Level.WARNING, words, "indexes that want a login refuse this machine", fix))
    if place.environment.get("HF_HUB_OFFLINE", "0") in ("", "0"):
        findings.append(_ask_hub(place, settings))
    return findings


def _ask_hub(place: Place, settings: IndexSettings) -> Finding:
    try:
        hub = observe_hub_settings(place.environment, place.home).endpoint
    except ValueError:
        hub = ""
    if not _is_url(hub):
        return _unreadable_url(_HUB, "HF_ENDPOINT")
    return _ask(hub, _HUB, read_trust(settings), None)


def _ask_index(settings: IndexSettings) -> Finding:
    if urlsplit(settings.url).scheme == "file":
        return ok("index", f"packages come from '{settings.url}'")
    login, host, login_file = settings.logins.get(origin_of(settings.url)), _host(settings.url), read_netrc(settings)
    # As the agent does: only a host that is named there.
    if login is None and login_file is not None and (found := login_file.hosts.get(host)):
        login = Login(found[0], found[2] or "")
    auth = httpx.BasicAuth(login.user, login.password) if login else None
    return _ask(f"{settings.url}/", _INDEX, read_trust(settings), auth)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_url(url: str) -> bool:
    """Whether it can be asked, and shown: where a password has a `/`, all that follows it looks like a path."""
    try:
        parts = urlsplit(url)
        _ = (parts.port, httpx.URL(url))
    except (ValueError, httpx.InvalidURL):
        return False
    return bool(parts.scheme) and "@" not in url


def _unreadable_url(what: str, variables: str) -> Finding:
    """Not with the URL, and not with the words of what reads URLs: both may hold a part of a password."""
    words = f"the URL of {what} can't be read as one; it isn't shown, since it may hold a password"
    fix = f"correct it in {variables}; in a password / is written %2F and @ is written %40"
    return Finding("index", Level.WARNING, words, _CONSEQUENCES[what], fix)


def _ask(url: str, what: str, trust: ssl.SSLContext, auth: httpx.Auth | None) -> Finding:
    """Only that it answers: an index of packages has no page of its own everywhere, and 404 is an answer too."""
    consequence = _CONSEQUENCES[what]
    fix = "check name server, proxy and firewall; or name a mirror (PIP_INDEX_URL, HF_ENDPOINT)"
    try:
        with (
            httpx.Client(verify=trust, timeout=_INDEX_SECONDS, auth=auth) as client,
            client.stream("GET", url) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        words = f"{what} at {url} can't be reached: {str(error) or type(error).__name__}"
        return Finding("index", Level.WARNING, words, consequence, fix)
    if status in (401, 403):
        words = f"{what} at {url} refuses this machine's credentials (status {status})"
        return Finding("index", Level.WARNING, words, consequence, "correct them where pip or uv read them")
    if status >= 500:
        return Finding("index", Level.WARNING, f"{what} at {url} answers with status {status}", consequence, fix)
    return ok("index", f"{what} at {url} answers")
