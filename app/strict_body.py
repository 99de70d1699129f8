"""JSON bodies of the admin API are taken as they are: a "3" is no number, and 1 is not true."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request


class StrictRequest(Request[Any, Any, Any]):
    """A request under /api whose JSON body is converted to the type that its handler takes,
    strictly; litestar itself would take texts for numbers, as it has to in a query. Under /v1 that
    is what clients of other servers are used to."""

    async def json(self) -> Any:
        """The handler's `data`, or the plain values where it has none. Raises
        msgspec.ValidationError naming the field."""
        body = await super().json()
        data = self.route_handler.parsed_fn_signature.parameters.get("data")
        if data is None or body is None or not self.url.path.startswith("/api/"):
            return body
        return msgspec.convert(body, data.annotation, str_keys=True)
