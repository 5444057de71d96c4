"""Which fields of a Messages request are read, which mean nothing here, and which are refused by name."""

from covey_gateway.wire.openai import fields as openai

_READ = frozenset(
    (
        "max_tokens",
        "messages",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    )
)

# They change nothing of the answer: who asked, what to cache (engines cache prefixes unasked), at what price.
_IGNORED = frozenset(
    (
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    )
)

MESSAGES_FIELDS = _READ | _IGNORED

REFUSED = openai.REFUSED | {
    "n": "an answer has one choice here",
    "compaction": "prompts are never cut here; too long a one is refused with both numbers",
    "fallbacks": "another model is another request",
    "fallback_credit_token": "another model is another request",
    "thread": "nothing is kept here; send the whole conversation in `messages`",
    "container": "there are no containers here; send the tools that you run yourself in `tools`",
    "mcp_servers": "MCP servers are the client's to call; send their tools in `tools`",
    "chat_template": "the template is the Model's",
    "stop": "use `stop_sequences`",
    "max_completion_tokens": "use `max_tokens`",
    "response_format": "use `output_config.format`",
}

KINDS = {
    "temperature": "number",
    "top_p": "number",
    "top_k": "number",
    "stop_sequences": "array",
    "messages": "array",
    "tools": "array",
    "tool_choice": "object",
    "thinking": "object",
    "output_config": "object",
    "output_format": "object",
    "metadata": "object",
    "stream": "boolean",
}
