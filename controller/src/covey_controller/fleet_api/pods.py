"""Pods that join by their ServiceAccount token: the API server says whose a token is, and this says what it may become.

A token names its ServiceAccount, and what it is bound to: the pod, and the node that the pod runs on. The names in a
wish count for nothing but comparison: a token taken from one node can't become another node's agent.

Node and pod names of Kubernetes that aren't Covey names are mapped (`render_covey_name`), on both sides alike.
"""

from dataclasses import dataclass
from enum import StrEnum

from covey_api.messages import CertificateRole
from covey_api.pod_names import render_covey_name

from covey_controller.ports import Caller, Reviewer
from covey_controller.serving.answers import ApiReason

AUDIENCE = "covey-fleet"
AGENT_ACCOUNT, GATEWAY_ACCOUNT = "covey-agent", "covey-gateway"
_ROLES = {AGENT_ACCOUNT: CertificateRole.AGENT, GATEWAY_ACCOUNT: CertificateRole.GATEWAY}
_USER_PREFIX = "system:serviceaccount:"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_POD_NAME = "authentication.kubernetes.io/pod-name"
# Tokens of pods are about a kilobyte; nothing longer is sent on.
MAX_TOKEN_LENGTH = 16_384


class PodRefused(Exception):
    """Why a pod's token doesn't let it in."""

    def __init__(self, refusal: StrEnum, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message


@dataclass(frozen=True, slots=True)
class Pods:
    """`namespaces`: where pods may join from."""

    reviewer: Reviewer
    namespaces: tuple[str, ...]

    async def prove(self, token: str, role: CertificateRole, name: str) -> None:
        """The bearer may have this role and name. PodRefused; ReviewUnavailable."""
        caller = await self.reviewer.review_token(token, AUDIENCE) if len(token) <= MAX_TOKEN_LENGTH else None
        if caller is None:
            raise PodRefused(
                ApiReason.POD_TOKEN_UNKNOWN,
                f"the token must be a join token, or a ServiceAccount token for audience '{AUDIENCE}' that hasn't "
                "expired and whose pod exists. Check the projected volume, or make a token with `covey token create`.",
            )
        check_pod(caller, self.namespaces, role, name)


def check_pod(caller: Caller, namespaces: tuple[str, ...], role: CertificateRole, name: str) -> None:
    """PodRefused unless:

    1. it is ServiceAccount `covey-agent` or `covey-gateway`, 2. of a namespace that may, 3. for the role of that
    account, 4. with a token bound to a node (agent) or a pod (gateway), 5. whose name is the one that is asked for.
    """
    namespace, _, account = caller.user.removeprefix(_USER_PREFIX).partition(":")
    allowed_role = _ROLES.get(account) if caller.user.startswith(_USER_PREFIX) else None
    if allowed_role is None or namespace not in namespaces:
        raise PodRefused(
            ApiReason.POD_NOT_ALLOWED,
            f"only ServiceAccounts '{AGENT_ACCOUNT}' and '{GATEWAY_ACCOUNT}' of namespaces "
            f"{', '.join(repr(each) for each in namespaces)} may join; the token is of '{caller.user}'. "
            "Let a namespace in by the controller's `--agent-namespace`, or use a join token.",
        )
    if allowed_role is not role:
        raise PodRefused(
            ApiReason.POD_NOT_ALLOWED, f"ServiceAccount '{account}' may join as '{allowed_role}'; it asked for '{role}'"
        )
    what, key = ("node", _NODE_NAME) if role is CertificateRole.AGENT else ("pod", _POD_NAME)
    bound_to = next(iter(caller.extra.get(key, ())), "")
    if not bound_to:
        raise PodRefused(
            ApiReason.POD_NAME_DIFFERS,
            f"the token must be bound to a {what}, as projected tokens are from Kubernetes 1.32 on; this one isn't",
        )
    if (expected := render_covey_name(bound_to)) != name:
        raise PodRefused(
            ApiReason.POD_NAME_DIFFERS,
            f"the {role} of {what} '{bound_to}' must be named '{expected}'; got '{name}'. "
            f"Start it with `--name {bound_to}`.",
        )
