"""What `make chaos` is made of, one concern per file.

`plan` (what a message asks for), `drawing` (which, from the seed), `conversation` (how far it has
come), `model_server`, `ledger` and `other_app` (the model and the tools), `journal` (what was asked
and done to the fleet), `drivers` and `office` (people who chat, and who are asked), `commands` (an
app that gives commands and does not wait), `crew` and `faults` (the fleet, and what befalls it, by
the `schedule`), `trail` and `picture` (what the database saw), `audit*` (whether it was right),
`recovery` and `report` (how long it took). `scripts/chaos.py` is the entry.
"""
