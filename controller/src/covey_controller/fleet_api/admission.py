"""Who may call what: the certificate's role and name decide, nothing in a path or body does.

Join is the one call without a certificate; its proof is a token, and wrong ones are made slow. Where the controller
runs in Kubernetes, a token that isn't one of Covey's own is a pod's, and the API server says whose (`pods`).
"""

import re
import time
from collections.abc import Callable

from covey_api.messages import CertificateRole, JoinAnswer, JoinRequest
from covey_api.meta import MAX_NAME_LENGTH, NAME_PATTERN
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request

from covey_controller.audit import Act, record_act
from covey_controller.authority import InvalidSigningRequest, parse_signing_request
from covey_controller.denials import CertificateDenied, Denials
from covey_controller.fleet_api.pods import PodRefused, Pods
from covey_controller.ports import ReviewUnavailable, VaultUnavailable
from covey_controller.serving.answers import ApiError, ApiReason, host_of, unavailable
from covey_controller.serving.protocol import Peer, connection_of
from covey_controller.serving.refusals import SlowRefusals
from covey_controller.tokens import TOKEN_PREFIX, TokenRefusal, TokenRefused, Tokens
from covey_controller.trust import Trust

# What a Node may be called: a member that names its node in any other way can't be written, and no plan would be.
_NAME = re.compile(NAME_PATTERN)
_BEARER = "bearer "


class Admission:
    """One event loop, no locks."""

    def __init__(
        self,
        trust: Trust,
        tokens: Tokens,
        denials: Denials,
        pods: Pods | None,
        may_be_there: Callable[[str], bool],
    ) -> None:
        """`may_be_there`: whether a gateway of this name may still live."""
        self._trust = trust
        self._tokens = tokens
        self._denials = denials
        self._pods = pods
        self._may_be_there = may_be_there
        self._refusals = SlowRefusals()

    def admit(self, request: Request) -> Peer:
        """Whoever holds a certificate of this fleet that isn't denied. ApiError 401 or 403."""
        peer = connection_of(request.scope).peer
        if peer is None:
            raise ApiError(
                401,
                ApiReason.NO_CERTIFICATE,
                f"'{request.url.path}' needs a client certificate of this fleet; join with a token to get one",
            )
        if self._denials.is_denied(peer):
            raise _denied(peer.role, peer.name)
        return peer

    def admit_agent(self, request: Request) -> Peer:
        """The agent of the node in the path, and nobody else."""
        peer = self.admit(request)
        node = request.path_params["node"]
        if peer.role is not CertificateRole.AGENT or peer.name != node:
            raise ApiError(
                403,
                ApiReason.FORBIDDEN,
                f"only the agent of node '{node}' may call this; the certificate is of {peer.role} '{peer.name}'",
            )
        return peer

    def admit_gateway(self, request: Request) -> Peer:
        peer = self.admit(request)
        if peer.role is not CertificateRole.GATEWAY:
            raise ApiError(
                403,
                ApiReason.FORBIDDEN,
                f"only gateways may call this; the certificate is of {peer.role} '{peer.name}'",
            )
        return peer

    async def join(self, request: Request, wish: JoinRequest) -> JoinAnswer:
        """Redeem the bearer's token for a certificate. Nothing is redeemed for a request that can't be signed."""
        self._refusals.require_room(host_of(request))
        key = _parse_key(wish)
        try:
            is_pod = await self._prove(_parse_bearer(request), wish)
        except (TokenRefused, PodRefused) as refused:
            await self._refusals.delay(host_of(request))
            raise ApiError(_status_of(refused), refused.refusal, refused.message) from None
        except (VaultUnavailable, ReviewUnavailable) as error:
            raise unavailable(f"{wish.role} '{wish.name}' can't join now: {error}") from None
        answer = await self._issue(wish, key, is_pod=is_pod)
        by = "a pod's ServiceAccount" if is_pod else "a join token"
        record_act(Act.JOIN, (f"{wish.role}/{wish.name}",), by, host_of(request), "Done")
        return answer

    async def _prove(self, bearer: str, wish: JoinRequest) -> bool:
        """The bearer may join as it wishes, as a pod or not. TokenRefused or PodRefused."""
        if self._pods is not None and bearer and not bearer.startswith(TOKEN_PREFIX):
            await self._pods.prove(bearer, wish.role, wish.name)
            return True
        await self._tokens.redeem(bearer, wish.role, time.time())
        return False

    async def renew(self, peer: Peer, wish: JoinRequest) -> JoinAnswer:
        """A new certificate for the same role and name. ApiError 403 if the peer's was refused meanwhile."""
        if (wish.role, wish.name) != (peer.role, peer.name):
            raise ApiError(
                403,
                ApiReason.FORBIDDEN,
                f"a renewal must be for {peer.role} '{peer.name}' as the certificate says; "
                f"got {wish.role} '{wish.name[:64]}'",
            )
        return await self._issue(wish, _parse_key(wish), renewed=peer)

    async def _issue(
        self,
        wish: JoinRequest,
        key: ec.EllipticCurvePublicKey,
        *,
        renewed: Peer | None = None,
        is_pod: bool | None = None,
    ) -> JoinAnswer:
        now = time.time()
        try:
            issued = await self._denials.record_issue(
                wish.role, wish.name, now, renewed=renewed, is_pod=is_pod, may_be_there=self._may_be_there
            )
        except CertificateDenied:
            raise _denied(wish.role, wish.name) from None
        except VaultUnavailable as error:
            raise unavailable(f"no certificate can be issued now: {error}") from None
        authority = self._trust.current
        certificate = authority.issue_client(key, wish.role, wish.name, issued)
        return JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=now)


def _denied(role: CertificateRole, name: str) -> ApiError:
    return ApiError(
        403,
        ApiReason.CERTIFICATE_DENIED,
        f"the certificate of {role} '{name}' is refused: it was removed from the fleet. Join again with a new token.",
    )


def _status_of(refused: TokenRefused | PodRefused) -> int:
    """403 for who is known and may not, 401 for who isn't."""
    is_known = refused.refusal in (TokenRefusal.WRONG_ROLE, ApiReason.POD_NOT_ALLOWED, ApiReason.POD_NAME_DIFFERS)
    return 403 if is_known else 401


def _parse_key(wish: JoinRequest) -> ec.EllipticCurvePublicKey:
    """The key to sign, once the name is one that a node may have. ApiError 400."""
    if not _NAME.fullmatch(wish.name) or len(wish.name) > MAX_NAME_LENGTH:
        raise ApiError(
            400,
            ApiReason.INVALID_NAME,
            f"`name` must be lower-case letters, digits and '-', at most {MAX_NAME_LENGTH}, and begin and end with a "
            f"letter or digit; got '{wish.name[:64]}'",
        )
    try:
        return parse_signing_request(wish.signing_request)
    except InvalidSigningRequest as error:
        raise ApiError(400, ApiReason.INVALID_SIGNING_REQUEST, str(error)) from None


def _parse_bearer(request: Request) -> str:
    value = request.headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""
