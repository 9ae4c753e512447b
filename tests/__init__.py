"""The tests, in four tiers by folder: unit, integration, scenarios, arch; see `conftest.py`."""
