"""`paceline db`: the database schema up, down, and where it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from app.failures import StartError
from app.settings import Settings, prepare_data_dir, settings_of


def upgrade(options: argparse.Namespace) -> int:
    from app.db import migrate

    return report(settings_of(options), migrate.upgrade)


def downgrade(options: argparse.Namespace) -> int:
    from app.db import migrate

    return report(settings_of(options), lambda url: migrate.downgrade(url, options.revision))


def current(options: argparse.Namespace) -> int:
    from app.db import migrate

    return report(settings_of(options), migrate.current)


def migrate_to_newest(settings: Settings) -> None:
    """What serve and up do first. Raises StartError."""
    from app.db.migrate import upgrade

    run(settings, upgrade)


def report(settings: Settings, work: Callable[[str], str | None]) -> int:
    print(run(settings, work) or "empty")
    return 0


def run(settings: Settings, work: Callable[[str], str | None]) -> str | None:
    from app.db.errors import DatabaseError

    prepare_data_dir(settings)
    try:
        return work(settings.database_url)
    except DatabaseError as error:
        raise StartError(str(error)) from error
