"""Parts of the controller page."""
