"""Storage: engine, schema, migrations, keys and queries."""
