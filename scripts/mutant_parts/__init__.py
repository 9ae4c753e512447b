"""The faults of `make mutants`: `of_machine.py` and `of_tasks.py`; `mutant.py` says what one is."""
