"""Join: from a token to a certificate, without ever showing the token's secret to anybody but the pinned authority."""

from covey_api.messages import CertificateRole

from covey_fleet_client.identity import Identity


async def ensure_joined(
    identity: Identity, controller_url: str, role: CertificateRole, name: str, token: str | None
) -> Identity:
    """A valid identity for this role and name: the stored one, else a new one by the token. One try; raises FleetError.

    A token of another authority than the pinned one means another fleet: joins anew. Callers retry
    `FleetErrorKind.UNREACHABLE` with `Backoff`.
    """
    raise NotImplementedError
