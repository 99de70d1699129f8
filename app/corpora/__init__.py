"""External corpora that drafters may copy from: read, stored, delivered to the engine."""
