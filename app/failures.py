"""Errors of the command line: one or two lines that say what, where and what to do."""

from __future__ import annotations


class Failure(Exception):
    """Ends a command with its message on standard error and its exit code, without a traceback."""

    exit_code = 1


class SettingsError(Failure):
    """A setting is wrong: the message names the option, the variable and what is allowed."""

    exit_code = 2


class StartError(Failure):
    """Something that the command needs cannot be had: a port, the database, the model, a server."""

    exit_code = 3
