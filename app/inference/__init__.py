"""The OpenAI surface: chat, completions, responses (HTTP and WebSocket), models, tokens."""
