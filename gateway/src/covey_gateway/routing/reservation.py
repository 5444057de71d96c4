"""What a request may fill at most of a cache that all slots of its engine share.

Tokens of a text are never more than its bytes, and JSON has more of these than the text; what a chat template puts
around each message is no longer than the JSON around it. So bytes are the bound, and no tokenizer is asked: four times
too much for English, and never too little. What doesn't fit by its bytes is counted by the engine (`Count`). Rejected:
what prompts of as many bytes came to before, which is a guess, and one wrong guess ends the streams of all.
"""

from dataclasses import dataclass, replace

import msgspec

from covey_gateway.routing.table import Target
from covey_gateway.wire.request import STREAMED, TEMPLATE_TOKENS, Call, Request

# How tools are called is explained at length.
TOOLS_TOKENS = 512
# What an engine keeps free at its window's end.
SPARE_TOKENS = 8

_ENCODE = msgspec.json.Encoder().encode
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Reservation:
    request: Request
    """With a bound for its answer, where the client set none."""
    tokens: int
    prompt_tokens: int = 0
    """What its prompts come to without any answer, as often as there are answers."""


def plan_reservation(request: Request, target: Target, pool_tokens: int, counted: int | None = None) -> Reservation:
    """`pool_tokens`: this gateway's part of the endpoint's cache. It may come to more than that: then it never fits.
    `counted`: the prompt's tokens, where the engine has told them.

    1. The prompt's bound; all of the window for one with an image, but no more than there is: how much an image is
    nobody here knows, so it goes when nothing else of this gateway is there.
    2. `max_tokens`, or without one what the endpoint gives by itself, but no more than fits beside the prompt when
       nobody else is there.
    3. Both as often as there are answers.
    """
    if request.call is Call.COUNT:
        return Reservation(request, 0)
    prompt = TEMPLATE_TOKENS
    if "tools" in request.fields or "functions" in request.fields:
        prompt += TOOLS_TOKENS
    if not request.media:
        prompt += len(_ENCODE(request.fields))  # an image's bytes say nothing of its tokens
    if counted is not None:
        prompt = counted + SPARE_TOKENS
    told = prompt if counted is None else counted
    if request.call not in STREAMED:
        return Reservation(request, prompt, prompt)
    answers = _count_answers(request)
    most = request.max_tokens
    if most is None:
        most = max(1, min(target.output_tokens, pool_tokens // answers - prompt))
        request = replace(request, max_tokens=most)
    tokens = answers * (prompt + most)
    if request.media:
        window = target.context_tokens or pool_tokens
        tokens = max(tokens, min(answers * (window + most), pool_tokens))
    return Reservation(request, tokens, answers * told)


def _count_answers(request: Request) -> int:
    """`n` of each prompt. Every one counts as all prompts together: too much, and simple."""
    n = request.fields.get("n")
    each = max(request.n, msgspec.json.decode(n) if isinstance(n, msgspec.Raw) else (n or 1))
    prompt = request.fields.get("prompt")
    if request.call is not Call.COMPLETION or not isinstance(prompt, msgspec.Raw) or bytes(prompt)[:1] != b"[":
        return each
    items = _ITEMS.decode(prompt)
    is_list = bool(items) and bytes(items[0])[:1] in (b'"', b"[")
    return each * (len(items) if is_list else 1)
