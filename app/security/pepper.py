"""The key pepper of a data directory, checked against the database that it belongs to."""

from __future__ import annotations

from app.db.errors import DatabaseError
from app.db.keys import load_pepper
from app.db.migrate import has_keys
from app.failures import StartError
from app.settings import Settings


def read_pepper(settings: Settings) -> bytes:
    """The pepper, made at the first start. Raises StartError when it is damaged, unreadable, or
    missing although the (migrated) database holds keys."""
    path = settings.data_path / "pepper"
    try:
        if not path.exists() and has_keys(settings.database_url):
            raise StartError(
                f"The key pepper {path} is missing, but the database holds API keys that cannot be "
                "checked without it. Restore it from a backup, or delete the keys (the rows of the "
                "table api_keys) to start with new ones."
            )
        return load_pepper(path)
    except OSError as error:
        raise StartError(f"Cannot read {path}: {error.strerror}. Check its owner.") from None
    except (DatabaseError, ValueError) as error:
        raise StartError(str(error)) from None
