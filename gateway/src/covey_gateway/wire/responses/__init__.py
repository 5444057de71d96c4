"""OpenAI's Responses, without their state."""
