import json
import stat
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole
from covey_controller.tokens import MAX_TOKENS, MAX_TTL_SECONDS, MAX_USES, TokenRefusal, TokenRefused, Tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.vaults import finish, tokens_in

AGENT, GATEWAY = CertificateRole.AGENT, CertificateRole.GATEWAY
NOW = 1_000_000.0


def refusal_of(tokens: Tokens, text: str, role: CertificateRole = AGENT, now: float = NOW) -> TokenRefusal:
    with pytest.raises(TokenRefused) as caught:
        finish(tokens.redeem(text, role, now))
    return caught.value.refusal


def test_a_token_is_good_for_its_uses_also_across_restarts(tmp_path: Path) -> None:
    token = finish(tokens_in(tmp_path).mint(AGENT, 2, 60, NOW))
    finish(tokens_in(tmp_path).redeem(token, AGENT, NOW))
    finish(tokens_in(tmp_path).redeem(token, AGENT, NOW + 59))
    assert refusal_of(tokens_in(tmp_path), token) is TokenRefusal.USED_UP
    assert refusal_of(tokens_in(tmp_path), token, now=NOW + 60) is TokenRefusal.EXPIRED


def test_a_token_for_another_role_is_refused_and_keeps_its_use(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    token = finish(tokens.mint(AGENT, 1, 60, NOW))
    assert refusal_of(tokens, token, GATEWAY) is TokenRefusal.WRONG_ROLE
    finish(tokens.redeem(token, AGENT, NOW))


def test_only_who_knows_the_secret_hears_why(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    identifier, _, digest = finish(tokens.mint(AGENT, 1, 60, NOW)).split(".")
    guess = f"{identifier}.{'A' * 43}.{digest}"
    assert refusal_of(tokens, guess) is TokenRefusal.UNKNOWN
    assert refusal_of(tokens, guess, GATEWAY, NOW + 1000) is TokenRefusal.UNKNOWN


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    token = finish(tokens_in(tmp_path).mint(AGENT, 1, 60, NOW))
    path = tmp_path / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.split(".")[1] not in path.read_text()
    assert set(json.loads(path.read_text())["tokens"][0]) == {"id", "role", "hash", "uses_left", "expires_at"}


def test_expired_tokens_go_when_one_is_minted(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    old = finish(tokens.mint(AGENT, 1, 60, NOW))
    finish(tokens.mint(AGENT, 1, 60, NOW + 60))
    assert len(json.loads((tmp_path / "tokens.json").read_text())["tokens"]) == 1
    assert refusal_of(tokens, old, now=NOW + 60) is TokenRefusal.UNKNOWN


def test_minting_has_bounds(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    for uses, ttl_seconds in ((0, 60), (MAX_USES + 1, 60), (1, 0), (1, MAX_TTL_SECONDS + 1)):
        with pytest.raises(ValueError, match="must be between"):
            finish(tokens.mint(AGENT, uses, ttl_seconds, NOW))
    for _ in range(MAX_TOKENS):
        finish(tokens.mint(AGENT, 1, 60, NOW))
    with pytest.raises(ValueError, match="open tokens"):
        finish(tokens.mint(AGENT, 1, 60, NOW))
    finish(tokens.mint(AGENT, 1, 60, NOW + 61))


def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(ValueError, match="join tokens"):
        tokens_in(tmp_path)


@given(st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_other_text_is_a_token(tmp_path: Path, text: str) -> None:
    assert refusal_of(tokens_in(tmp_path), text) is TokenRefusal.UNKNOWN
