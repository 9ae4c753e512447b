"""The pure core: what should happen, as values and functions over values.

Nothing here opens a socket, reads a clock or an environment, or imports anything but the standard
library. Start with `state.py` (the statuses and the one table of transitions).
"""
