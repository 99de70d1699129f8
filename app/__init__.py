"""The service: OpenAI-compatible and admin API, storage, command line."""
