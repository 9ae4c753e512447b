"""The Celery application: `celery -A tasks worker`, run from the project root.

The boot guard comes first, before anything imports `models`. Settings are in `celeryconfig.py`.
This package says *when* things happen; what should happen is in `rejoinder`, what is true in
`models`. The tasks are in `step.py`, `front_door.py` and `sweeping.py`.
"""

from pathlib import Path

from celery import Celery

from rejoinder.boot import require_own_packages

require_own_packages(Path(__file__).parents[1])

app = Celery("rejoinder")
app.config_from_object("celeryconfig")
