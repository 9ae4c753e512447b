"""Who is measured: nothing durable, bare Celery, naive Celery, the peers, and ourselves.

Each is what its documentation would have a user write, in a few dozen lines. Those that are a
program of their own read lines of tasks from their input and say when all are done (`program.py`).
"""
