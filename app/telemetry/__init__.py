"""What the service records about itself and how it is written."""
