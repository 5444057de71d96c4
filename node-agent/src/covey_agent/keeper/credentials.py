"""The node's own identity as its servers show it, and whom they refuse: the agent's files, as they change.

The agent renews its certificate while the keeper runs, for months perhaps. At each new connection the files' times are
looked at (three `stat`, some microseconds), and what changed is read anew; connections that are open keep what they
have. A file that can't be used leaves the one before in force: a power cut between two writes costs no connection.

Rejected: being told by the agent. It may be away, and what it wrote is there all the same.
"""

import json
import os
import ssl
from collections.abc import Callable
from typing import Any

# Beside the identity: {"gateways": {NAME: LATEST}, "nodes": {…}}, LATEST in seconds since the epoch.
REFUSED_NAME = "refused-gateways.json"

Stamp = tuple[tuple[int, int, int], ...]


class Credentials:
    """`folder` holds the identity. `on_name` hears which name a peer asks for, and gives a TLS alert or None; without
    it the peers are those that are dialled.

    `role` comes in, and is called `kind` in words; of these `only` who is named, if anybody is.
    """

    def __init__(
        self,
        folder: str,
        on_name: Callable[[object, str | None, ssl.SSLContext], int | None] | None,
        complain: Callable[[str], None],
        role: str = "gateway",
        kind: str = "gateway",
        only: frozenset[str] = frozenset(),
    ) -> None:
        self._only = only
        self._uri = f"covey://{role}/"
        self._kind = kind
        self._certificate = os.path.join(folder, "certificate.pem")
        self._key = os.path.join(folder, "key.pem")
        self._authorities = os.path.join(folder, "authorities.pem")
        self._refused_path = os.path.join(folder, REFUSED_NAME)
        self._on_name = on_name
        self._complain = complain
        self._context: ssl.SSLContext | None = None
        self._read_at: Stamp = ()
        self._refused: dict[str, float] = {}
        self._refused_read_at: Stamp = ()

    def observe_context(self) -> ssl.SSLContext | None:
        """For a new connection; None while there has never been a whole identity."""
        stamp = observe_stamp(self._certificate, self._key, self._authorities)
        if stamp != self._read_at:
            self._read_at = stamp
            try:
                self._context = self._make_context()
            except (OSError, ValueError) as error:
                self._complain(f"the node's identity can't be read, the one before is used: {error}")
        return self._context

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._on_name else ssl.PROTOCOL_TLS_CLIENT)
        # Both ends are ours. 1.3 has no renegotiation, and shows no certificate to who listens in.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a certificate names its node, whatever its address is
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self._authorities)
        context.load_cert_chain(self._certificate, self._key)
        # No tickets: a resumed session would outlive the check of the certificate.
        context.options |= ssl.OP_NO_TICKET
        if self._on_name:
            context.num_tickets = 0
            context.sni_callback = self._on_name
        return context

    def explain_refusal(self, certificate: dict[str, Any]) -> str:
        """Why the holder of this verified certificate isn't let in; empty: it is."""
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        mine = [name.removeprefix(self._uri) for name in names if name.startswith(self._uri)]
        if len(names) != 1 or not mine:
            return f"only {self._kind}s come in; its certificate is of '{', '.join(names) or 'nobody'}'"
        if self._only and mine[0] not in self._only:
            return f"it must be {self._kind} {' or '.join(map(repr, sorted(self._only)))}; it is {mine[0]!r}"
        latest = self.observe_refused().get(mine[0])
        if latest is not None and ssl.cert_time_to_seconds(certificate["notBefore"]) <= latest:
            return f"{self._kind} '{mine[0]}' was removed from the fleet"
        return ""

    def observe_refused(self) -> dict[str, float]:
        """By name: certificates that begin by then are refused. The same object while nothing changed."""
        stamp = observe_stamp(self._refused_path)
        if stamp != self._refused_read_at:
            self._refused_read_at = stamp
            try:
                with open(self._refused_path, "rb") as file:
                    found = json.load(file).get(f"{self._kind}s", {})  # an agent of the version before wrote no nodes
                    self._refused = {str(name): float(latest) for name, latest in found.items()}
            except FileNotFoundError:
                self._refused = {}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._complain(f"'{self._refused_path}' can't be read, what it said before holds: {error!r}")
        return self._refused


def name_of(certificate: dict[str, Any]) -> str:
    """Whose it is, of those that come in."""
    return next((value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"), "")


def observe_stamp(*paths: str) -> Stamp:
    """What tells these files from what they were; zeros for one that is missing."""
    found: list[tuple[int, int, int]] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
