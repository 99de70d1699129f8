"""Multi-token prediction heads: one small module that drafts from the target's hidden states."""
