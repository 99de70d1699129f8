"""`paceline bench`: speculation modes measured side by side on a running server."""
