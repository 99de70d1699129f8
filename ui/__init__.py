"""The console: a Streamlit application that talks to the API over HTTP and WebSocket only."""
