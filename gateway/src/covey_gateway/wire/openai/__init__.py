"""OpenAI's chat completions: request, answer, errors."""
