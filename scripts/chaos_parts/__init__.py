"""What `make chaos` is made of, one concern per file.

`plan` (what a message asks for), `model_server` and `ledger` (the model and the tools), `journal`
(what was asked and done to the fleet), `drivers` (people who chat), `crew` and `faults` (the fleet,
and what befalls it, by the `schedule`), `trail` and `picture` (what the database saw), `audit*`
(whether it was right), `recovery` and `report` (how long it took). `scripts/chaos.py` is the entry.
"""
