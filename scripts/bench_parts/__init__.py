"""The parts of `make bench`: a model server, the contenders, what is measured, and how it is told.

`model_server.py` is a process of its own and keeps the clock: when each model call came and ended.
Each contender (`contenders/`, started by `running.py`) runs the same turns.
"""
