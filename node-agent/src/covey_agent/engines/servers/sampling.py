"""Fields of a request that choose tokens: each a number within its bounds, or refused by name.

An engine that meets others does what it likes: mlx-lm samples on the one thread that generates for everybody, and what
raises there ends generation for everybody.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from covey_agent.engines.servers.web import Body, invalid, read_object

MAX_STOPS = 16
_MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one field; both ends are included."""

    field: str
    least: float
    most: float
    is_whole: bool = False


# What mlx-lm reads of a request beside numbers, its messages and its names.
_MLX_TAKES = ("chat_template_kwargs", "logprobs", "stream", "stream_options", "tools")
_MLX_NUMBERS = (
    Bound("temperature", 0, 10),
    Bound("top_p", 0, 1),
    Bound("top_k", -1, (1 << 31) - 1, is_whole=True),
    Bound("min_p", 0, 1),
    Bound("repetition_penalty", 0, 10),
    Bound("repetition_context_size", 1, 1 << 20, is_whole=True),
    Bound("presence_penalty", -2, 2),
    Bound("presence_context_size", 1, 1 << 20, is_whole=True),
    Bound("frequency_penalty", -2, 2),
    Bound("frequency_context_size", 1, 1 << 20, is_whole=True),
    Bound("xtc_probability", 0, 1),
    Bound("xtc_threshold", 0, 1),
    Bound("top_logprobs", 0, 11, is_whole=True),
)


def read_number(body: Body, bound: Bound) -> float | int | None:
    """None: it isn't there. Refused names the field and its bounds."""
    value: object = body.get(bound.field)
    if value is None:
        return None
    kind = "a whole number" if bound.is_whole else "a number"
    words = f"`{bound.field}` must be {kind} from {bound.least} to {bound.most}; got {json.dumps(value)[:40]}"
    if not isinstance(value, int | float) or isinstance(value, bool) or not bound.least <= value <= bound.most:
        raise invalid(words)
    if bound.is_whole and not float(value).is_integer():
        raise invalid(words)
    return int(value) if bound.is_whole else float(value)


def read_seed(body: Body) -> int | None:
    """Of any whole number, the bits that engines take."""
    value: object = body.get("seed")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"`seed` must be a whole number; got {json.dumps(value)[:40]}")
    return value & 0xFFFFFFFF


def read_stops(body: Body) -> tuple[str, ...]:
    wanted: object = body.get("stop") or []
    texts = cast(list[object], wanted) if isinstance(wanted, list) else [wanted]
    found = tuple(text for text in texts if isinstance(text, str) and text)
    if len(found) != len(texts) or len(found) > MAX_STOPS:
        raise invalid(f"`stop` must be a text or at most {MAX_STOPS} of them")
    return found


def read_bias(body: Body, vocabulary: int) -> dict[str, float]:
    """By token, each one that the model has."""
    found: dict[str, float] = {}
    given: Mapping[str, object] = read_object(body, "logit_bias")
    for token, value in given.items():
        is_known = token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocabulary
        if not is_known:
            raise invalid(f"`logit_bias` names token {json.dumps(token)[:40]}; this model has 0 to {vocabulary - 1}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not -_MAX_BIAS <= value <= _MAX_BIAS:
            raise invalid(f"`logit_bias` must be numbers from -100 to 100; got {json.dumps(value)[:40]}")
        found[token] = float(value)
    return found


def settle_mlx_choices(body: Body) -> None:
    """What mlx-lm would not read, and not say so: it gives one choice, and the model alone decides whether to call."""
    if body.get("n") not in (None, 1):
        raise invalid("`n` must be 1: engine 'Mlx' gives one choice; 'LlamaServer' gives several")
    choice = body.pop("tool_choice", None)
    if choice == "none":
        body.pop("tools", None)
    elif choice not in (None, "auto"):
        raise invalid("`tool_choice` must be 'auto' or 'none': engine 'Mlx' can't be made to call; 'LlamaServer' can")


def choose_mlx_fields(body: Body, vocabulary: int, encode: Callable[[str], Sequence[int]]) -> Body:
    """What mlx-lm's server is handed of a request, beside its messages, model and length; nothing that it can't do.

    `vocabulary`: tokens that the model has. `encode`: its tokenizer.
    """
    wanted: dict[str, Any] = {field: body[field] for field in _MLX_TAKES if body.get(field) is not None}
    read_object(body, "stream_options")
    numbers = {bound.field: read_number(body, bound) for bound in _MLX_NUMBERS}
    wanted |= {field: value for field, value in numbers.items() if value is not None}
    if not 0 < wanted.get("top_k", 1) < vocabulary:
        wanted["top_k"] = 0  # as other engines read it: of all
    if wanted.get("xtc_threshold", 0) > 0.5:
        wanted["xtc_probability"] = wanted["xtc_threshold"] = 0.0  # no two tokens can have as much: it does nothing
    if stops := read_stops(body):
        wanted["stop"] = list(stops)
        if not all(_encodes(encode, stop) for stop in stops):
            raise invalid("`stop` must be texts that the model's tokenizer knows")
    if (seed := read_seed(body)) is not None:
        wanted["seed"] = seed
    if bias := read_bias(body, vocabulary):
        wanted["logit_bias"] = bias
    return wanted


def _encodes(encode: Callable[[str], Sequence[int]], text: str) -> bool:
    try:
        return len(encode(text)) > 0
    except Exception:  # a tokenizer raises what it likes, of half a character for instance
        return False


def refuse_variables(variables: Mapping[str, object], own: frozenset[str]) -> None:
    """`own`: what the tokenizer's own function of the template takes: they are no variables of a template."""
    if taken := sorted(own & variables.keys()):
        raise invalid(f"`chat_template_kwargs` must not hold `{taken[0]}`: it is no variable of a template")
