"""Which fields of a Responses request are read, which mean nothing here, and which are refused by name."""

from covey_gateway.wire.openai import fields as openai

READ = frozenset(
    (
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "parallel_tool_calls",
        "reasoning",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
        "truncation",
    )
)

# They change nothing of the answer. `include` asks for encrypted reasoning, which is sent in the clear here anyway, or
# for what tools found that aren't run here; log probabilities are refused.
IGNORED = frozenset(
    (
        "client_metadata",
        "include",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    )
)

KNOWN = READ | IGNORED

_STATELESS = "nothing is kept here; send the whole conversation in `input`"

REFUSED = openai.REFUSED | {
    "n": "an answer has one choice here",
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "access_programs": "they are OpenAI's own",
    "background_options": "answers are not kept for later; ask with `stream`",
    "image": "no engine here makes pictures",
    "background": "answers are not kept for later; ask with `stream`",
    "prompt": "there are no stored prompts here; send `instructions` and `input`",
    "top_logprobs": "ask /v1/chat/completions for them",
    "context_management": "prompts are never cut; too long a one is refused with both numbers",
    "max_tokens": "use `max_output_tokens`",
    "messages": "use `input`",
    "n_predict": "use `max_output_tokens`",
    "chat_template": "the template is the Model's",
}

KINDS = {
    "include": "array",
    "instructions": "string",
    "metadata": "object",
    "parallel_tool_calls": "boolean",
    "reasoning": "object",
    "store": "boolean",
    "temperature": "number",
    "text": "object",
    "tools": "array",
    "top_p": "number",
    "truncation": "string",
}
