"""Ollama's own API."""
