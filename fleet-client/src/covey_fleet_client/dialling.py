"""TLS to a node of the fleet: this part's certificate, and the proof that the other end is the node that is meant.

The certificate's host names mean nothing here (nodes are reached by addresses that come and go); its URI does:
`covey://agent/NODE`, of this fleet's authority.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FILES = ("certificate.pem", "key.pem", "authorities.pem")


class DialContext:
    """`folder`: of this part's identity.

    Its files are looked at with each dial (three `stat`), so a renewed certificate is shown by the next connection, and
    those that are open go on.
    """

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key, self._authorities = (folder / name for name in _FILES)
        self._context: ssl.SSLContext | None = None
        self._read_at: tuple[tuple[int, int], ...] = ()

    def observe(self) -> ssl.SSLContext:
        """A torn identity (a power cut between two writes) leaves the one before in force. OSError or ValueError where
        there has never been a whole one."""
        try:
            stats = [os.stat(path) for path in (self._certificate, self._key, self._authorities)]
            stamp = tuple((status.st_mtime_ns, status.st_ino) for status in stats)
            if self._context is None or stamp != self._read_at:
                self._read_at = stamp
                self._context = self._make()
        except (OSError, ValueError):
            if self._context is None:
                raise
        return self._context

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.load_verify_locations(self._authorities)
        context.load_cert_chain(self._certificate, self._key)
        return context


def find_other(certificate: Mapping[str, Any], node: str) -> str:
    """Whose verified certificate it is instead of the node's, in words; empty: it is the node's."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return "" if names == [f"covey://agent/{node}"] else f"'{', '.join(names) or 'nobody'}'"
