"""Keys, scopes, tickets and the Origin check."""
