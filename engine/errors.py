"""Errors a user can meet in the engine: what happened, where, what to do."""

from __future__ import annotations


class RequestError(Exception):
    """A request the engine refuses. code and param are as in wire.Failed."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class StartError(Exception):
    """The engine cannot start, and starting again will not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineStartError(Exception):
    """The client's word for an engine that cannot start; for other codes than engine_died trying
    again will not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineCallError(Exception):
    """A call was refused (code of the call), the engine takes none at the moment (queue_full), or
    it is away (engine_restarting). param: the field at fault, if it is one."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
