"""What is true: the chat's rows and the only code that may change them.

`tables.py` says what a row can say, `machine/` is the only writer of status, versions and history,
`claims.py` holds the few statements where concurrency lives. This package never publishes
anything: transitions return `Effects` for their caller to publish after the commit.
"""
