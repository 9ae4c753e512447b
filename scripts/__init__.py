"""What `make` runs, and what tests and measurements share."""
