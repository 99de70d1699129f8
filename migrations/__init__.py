"""Alembic environment and the ordered schema revisions."""
