"""The words for a model that can't be asked now: unknown, on its way, or not to be had."""

from collections.abc import Iterable

from covey_api.messages import ModelState, ServedModel
from covey_api.reasons import ErrorCode

from covey_gateway.routing.choose import NoneFree
from covey_gateway.routing.quotas import Spent
from covey_gateway.routing.reservation import SPARE_TOKENS
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.request import MEDIA_TASK, Request

# Names in one message; GET /v1/models has all.
_MAX_NAMES = 10


def refuse_unknown(asked: str, names: Iterable[str]) -> ApiError:
    known = list(names)
    listed = ", ".join(f"'{name}'" for name in known[:_MAX_NAMES])
    there = f"there is {listed}" if known else "no model is declared"
    more = f" and {len(known) - _MAX_NAMES} more: GET /v1/models lists them" if len(known) > _MAX_NAMES else ""
    message = f"model '{asked[:200]}' is not declared here; {there}{more}"
    return ApiError(404, ErrorCode.MODEL_NOT_FOUND, message, "model")


def refuse_task(model: ServedModel, task: str) -> ApiError | None:
    """None when the model does this task (or says nothing of tasks)."""
    if not model.tasks or task in model.tasks:
        return None
    does = ", ".join(f"'{name}'" for name in model.tasks)
    message = f"model '{model.name}' must have the task '{task}' for this call; it has {does}"
    return ApiError(400, ErrorCode.TASK_NOT_SUPPORTED, message, "model")


def refuse_media(model: ServedModel, place: str) -> ApiError | None:
    """An image for a model that takes none; `place` is where the first one is."""
    if not place or MEDIA_TASK in model.tasks:
        return None
    message = f"model '{model.name}' takes text only, and `{place}` is an image"
    return ApiError(400, ErrorCode.TASK_NOT_SUPPORTED, message, place.partition("[")[0])


def refuse_window(model: ServedModel, request: Request, window: int | None) -> ApiError | None:
    """What can't fit whatever the prompt is: more tokens to generate, or a wider window, than there is."""
    if window is None:
        return None
    if request.max_tokens is not None and request.max_tokens >= window:
        field, must = request.limit_field, f"below that; got {request.max_tokens}"
    elif request.window_tokens > window:
        field, must = "options.num_ctx", f"at most that; got {request.window_tokens}"
    else:
        return None
    takes = f"model '{model.name}' takes at most {window} tokens here, prompt and answer"
    return ApiError(400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, f"{takes}; `{field}` must be {must}", field)


def refuse_unready(model: ServedModel) -> ApiError:
    """A declared model without an endpoint."""
    why = f"{model.reason}: {model.message}" if model.reason and model.message else model.reason or model.message
    if model.state is ModelState.NOT_PLACED and not model.wakes:
        message = f"model '{model.name}' is declared, but no Placement asks for a replica of it"
        return ApiError(503, ErrorCode.MODEL_UNAVAILABLE, message, "model")
    if model.state is ModelState.UNAVAILABLE:
        message = f"model '{model.name}' can't be served: {why or 'no reason was given'}"
        return ApiError(503, ErrorCode.MODEL_UNAVAILABLE, message, "model")
    why = "it is started now" if model.wakes else why
    loading: dict[str, object] = {"state": model.state.value, "reason": model.reason, "message": model.message}
    if (progress := model.progress) is not None:
        loading |= progress.to_wire()
    return ApiError(
        503,
        ErrorCode.MODEL_LOADING,
        f"model '{model.name}' is not ready yet" + (f": {why}" if why else ""),
        "model",
        retry_after_seconds=max(1, model.retry_after_seconds),
        loading=loading,
    )


def refuse_none_free(model: ServedModel, found: NoneFree) -> ApiError:
    """A model whose endpoints are all full or set aside."""
    if found.is_full:
        message = f"every endpoint of model '{model.name}' has as many requests waiting as it takes; try again"
        return ApiError(503, ErrorCode.OVERLOADED, message, retry_after_seconds=found.retry_after_seconds)
    message = f"no endpoint of model '{model.name}' answers; those that refused are tried again soon"
    return ApiError(503, ErrorCode.UPSTREAM_UNAVAILABLE, message, retry_after_seconds=found.retry_after_seconds)


def refuse_pool(
    model: str, request: Request, tokens: int, prompt_tokens: int, pool_tokens: int, *, is_counted: bool = False
) -> ApiError:
    """What is more than the whole of a cache that slots share, as the engine counted, or as far as its bytes tell."""
    comes = "comes" if is_counted else "may come"
    by = "" if is_counted else ", by its bytes"
    room = f"model '{model}' has room for {pool_tokens} at a time here"
    if prompt_tokens + SPARE_TOKENS * is_counted >= pool_tokens:
        field = request.prompt_field
        message = f"`{field}` {comes} to {prompt_tokens} tokens{by}; {room}. Shorten it"
    else:
        field = request.limit_field
        by = by or ", by its prompt"
        message = f"the request {comes} to {tokens} tokens{by} and `{field}`; {room}. Ask for fewer"
    return ApiError(400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, field)


def refuse_displaced(model: str) -> ApiError:
    """One of a lower priority, or one of many of its key for one of a key that has fewer."""
    words = f"as many requests wait for model '{model}' as may, and another one's came before it; try again"
    return ApiError(503, ErrorCode.OVERLOADED, words, retry_after_seconds=1)


def refuse_spent(key: str, spent: Spent) -> ApiError:
    """A limit of its key was hit."""
    words, what = _LIMITS[spent.limit]
    message = (
        f"key '{key}' may have {spent.allowed} {words} here (`{spent.limit}`), and has; {what} frees in "
        f"{spent.frees_after_seconds} s"
    )
    return ApiError(
        429,
        ErrorCode.RATE_LIMIT_EXCEEDED,
        message,
        spent.limit,
        retry_after_seconds=spent.frees_after_seconds,
        limit=spent.limit,
    )


_LIMITS = {
    "requestsPerMinute": ("requests per minute", "the next one"),
    "tokensPerMinute": ("tokens per minute", "some of it"),
    "tokensPerDay": ("tokens per day (UTC)", "the next day's"),
    "concurrency": ("requests at a time", "one perhaps"),
}


def refuse_cancelled() -> ApiError:
    return ApiError(410, ErrorCode.REQUEST_CANCELLED, "the request was cancelled by its id")


def refuse_no_request(id_: str) -> ApiError:
    message = f"no request of yours with the id '{id_}' is under way; ids are in each answer's `x-request-id`"
    return ApiError(404, ErrorCode.NOT_FOUND, message)


def refuse_too_large(limit_bytes: int) -> ApiError:
    message = f"a request body must have at most {limit_bytes} bytes"
    return ApiError(413, ErrorCode.REQUEST_TOO_LARGE, message)


def refuse_method(method: str, path: str, allowed: str) -> ApiError:
    message = f"{path} takes {allowed}; got {method}"
    return ApiError(405, ErrorCode.METHOD_NOT_ALLOWED, message, allow=allowed)


def refuse_path(path: str) -> ApiError:
    message = f"there is nothing at {path[:200]}; there is POST /v1/chat/completions and GET /v1/models"
    return ApiError(404, ErrorCode.NOT_FOUND, message)


def refuse_media_call(path: str) -> ApiError:
    message = f"{path[:200]} is not served yet: no engine here makes or reads sound and pictures"
    return ApiError(501, ErrorCode.TASK_NOT_SUPPORTED, message)


def refuse_declared(path: str) -> ApiError:
    message = f"{path[:200]} changes models, and models are declared, not made by calls: see `covey apply`"
    return ApiError(501, ErrorCode.TASK_NOT_SUPPORTED, message)


def refuse_figures() -> ApiError:
    words = "figures are told on loopback, to who sends no key, and on the port of `--metrics-listen`"
    return ApiError(404, ErrorCode.NOT_FOUND, words)


def refuse_slow(what: str) -> ApiError:
    return ApiError(408, ErrorCode.INVALID_REQUEST, invalid_request(what).message)
