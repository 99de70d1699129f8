"""Tests of the storage: schema, keys, queries and the writer, on SQLite and PostgreSQL."""
