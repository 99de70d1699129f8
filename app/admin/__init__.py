"""The operator surface: live state, drafters, controller, decisions, keys, audit."""
