"""Every field that the official SDKs can send has a decision here: read, of no meaning, or refused with a reason."""

from collections.abc import Collection
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from covey_gateway.wire.anthropic import fields as anthropic
from covey_gateway.wire.openai import fields as openai
from covey_gateway.wire.responses import fields as responses
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

TEXT_ONLY = ("echo", "suffix", "best_of", "logprobs")

# What must never reach an engine, whatever the format.
SHARED = (
    "id_slot",
    "n_predict",
    "cache_prompt",
    "lora",
    "adapters",
    "draft_model",
    "chat_template",
    "priority",
    "kv_transfer_params",
)


@pytest.mark.parametrize(
    ("params", "known"),
    [
        (ChatParams, (*openai.CHAT_FIELDS, *openai.REFUSED)),
        (TextParams, (*openai.TEXT_FIELDS, *openai.REFUSED, *TEXT_ONLY)),
        (ResponseParams, (*responses.KNOWN, *responses.REFUSED)),
        (MessageParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
        (BetaMessageParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
        (MessageCountTokensParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
    ],
)
def test_every_field_of_an_sdk_has_a_decision(params: Any, known: Collection[str]) -> None:
    assert set(params.__annotations__) - set(known) == set()


@pytest.mark.parametrize("refused", [openai.REFUSED, responses.REFUSED, anthropic.REFUSED])
def test_what_touches_what_all_share_is_refused_with_a_reason(refused: dict[str, str]) -> None:
    assert [name for name in SHARED if not refused.get(name)] == []


def test_no_field_is_both_taken_and_refused() -> None:
    assert not responses.KNOWN & responses.REFUSED.keys()
    assert not anthropic.MESSAGES_FIELDS & anthropic.REFUSED.keys()
