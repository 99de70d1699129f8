"""JSON that others wrote, decoded: whatever is wrong with it is one kind of error."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(data: bytes | bytearray | str | msgspec.Raw, kind: type[T]) -> T:
    """The value. Raises msgspec.MsgspecError: also for bytes that are not UTF-8, and for values
    that are nested deeper than any of ours, which end as RecursionError and UnicodeDecodeError
    otherwise."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON is not UTF-8: see byte {error.start}") from None
