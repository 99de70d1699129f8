"""Which web pages may open a WebSocket to this server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit


def origin_allowed(headers: Mapping[bytes, str], allowed: Collection[str]) -> bool:
    """True without an Origin (not a browser), from this server's own host, or from the list.

    allowed: origins as `scheme://host:port`, lower case."""
    origin = headers.get(b"origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return False
    if f"{parts.scheme}://{parts.netloc}" in allowed:
        return True
    return parts.netloc == headers.get(b"host", "").lower()


def console_origins(ui_port: int, host: str) -> list[str]:
    """The origins under which a browser sees the console of this installation."""
    hosts = {"127.0.0.1", "localhost", "[::1]"}
    if host not in ("0.0.0.0", "::"):
        hosts.add(f"[{host}]" if ":" in host else host.lower())
    return [f"http://{name}:{ui_port}" for name in sorted(hosts)]
