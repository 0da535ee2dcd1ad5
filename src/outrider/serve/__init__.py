"""Serve a model over HTTP: the engine that batches requests, and an API as OpenAI's clients expect it."""
