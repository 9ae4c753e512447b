"""The faults of `make mutants`: one list per room; `mutant.py` says what a fault is."""
