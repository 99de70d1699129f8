"""DatabaseError and the translation of driver errors into what, where and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from asyncpg.exceptions import InterfaceError, PostgresError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    IntegrityError,
    SQLAlchemyError,
    StatementError,
)


class DatabaseError(Exception):
    """A database problem that a person can act on.

    code is one of: bad_url, locked, read_only, full, cannot_open, not_a_database, unreachable,
    refused, newer_schema, unknown_revision, failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# asyncpg's own errors come through unwrapped while a connection is being made.
_DRIVER_ERRORS = (SQLAlchemyError, OSError, TimeoutError, PostgresError, InterfaceError)

# Matched in order against the lower-case text of the error and of its causes.
_KNOWN: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    (
        "locked",
        ("database is locked", "database table is locked", "lock timeout"),
        "is locked by another process",
        "Stop the other process that uses it and try again.",
    ),
    (
        "read_only",
        ("readonly database", "read-only"),
        "is read-only",
        "Give this user write access to the database and its folder, or choose another one with "
        "--database-url or --data-dir.",
    ),
    (
        "full",
        ("disk is full", "no space left", "disk full"),
        "cannot grow: the disk is full",
        "Free some space and try again.",
    ),
    (
        "not_a_database",
        ("file is not a database", "malformed"),
        "is not a usable SQLite database",
        "Move the file away, or choose another one with --database-url.",
    ),
    (
        "cannot_open",
        ("unable to open database file",),
        "cannot be opened",
        "Check that the folder exists and that this user may write there.",
    ),
    (
        "refused",
        (
            "invalidpassworderror",
            "invalidauthorizationspecificationerror",
            "invalidcatalognameerror",
            "insufficientprivilegeerror",
        ),
        "refuses this user",
        "Check user, password, database name and rights in --database-url.",
    ),
    (
        "unreachable",
        (
            "connection refused",
            "connect call failed",
            "no such file or directory",
            "name or service not known",
            "temporary failure in name resolution",
            "connection was closed",
            "connection is closed",
            "terminating connection",
            "starting up",
            "shutting down",
            "timeout",
        ),
        "cannot be reached",
        "Check that the database server runs and that --database-url names the right host.",
    ),
)


def display_url(url: str | URL) -> str:
    """The URL without its password, fit for messages and logs."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "(unreadable database URL)"


def explain(error: BaseException, url: str | URL) -> DatabaseError:
    """A DatabaseError that says what happened, where and what to do."""
    if isinstance(error, DatabaseError):
        return error
    where = display_url(url)
    text = " ".join(f"{type(cause).__name__} {cause}" for cause in _causes(error)).lower()
    for code, marks, what, remedy in _KNOWN:
        if any(mark in text for mark in marks):
            return DatabaseError(code, f"The database {where} {what}. {remedy}")
    return DatabaseError("failed", f"The database {where} failed: {brief(error)}")


def brief(error: BaseException) -> str:
    """One line about an error: the driver's own message, without SQL and parameters."""
    cause = getattr(error, "orig", None) or error
    lines = str(cause).strip().splitlines()
    name = type(cause).__name__
    return f"{name}: {lines[0][:200]}" if lines else name


def is_bad_row(error: BaseException) -> bool:
    """True when the rows themselves are at fault, so that trying again cannot help."""
    if isinstance(error, IntegrityError | DataError | OverflowError | UnicodeEncodeError):
        return True
    if type(error) is StatementError:  # a value that could not be bound; subclasses are the DBAPI's
        return True
    # SQLAlchemy passes asyncpg's data errors on as plain DBAPIError: SQLSTATE class 22 and 23 from
    # the server, asyncpg.DataError when the value could not even be encoded.
    for cause in _causes(error):
        state = getattr(cause, "sqlstate", None)
        if isinstance(state, str) and state[:2] in ("22", "23"):
            return True
        if type(cause).__name__ == "DataError":
            return True
    return False


@contextmanager
def translated(url: str | URL) -> Generator[None]:
    """Raises driver errors from the body as DatabaseError, but of a task that is being cancelled
    as that: drivers make errors of their own of it, and who tries again would never end."""
    try:
        yield
    except _DRIVER_ERRORS as error:
        if _cancelled():
            raise asyncio.CancelledError from error
        raise explain(error, url) from error


def _cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop here
        return False
    return task is not None and task.cancelling() > 0


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = getattr(current, "orig", None) or current.__cause__
