"""make chaos: a fleet of real workers under chats and faults, and then the books are checked.

Servers, a model on the loopback, tools that leave a trace, three workers, one for control, beat,
one of another app; people who chat and who are asked, through the client; a fault every two or
three seconds, all drawn from the seed.
Exit code 0: the audit found nothing lost, stuck, doubled or out of order. See docs/chaos.md.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rejoinder.embedded import ServersError
from scripts.chaos_parts import report
from scripts.chaos_parts.drawing import ALL, Mix
from scripts.chaos_parts.run import Options, Run
from scripts.chaos_parts.schedule import ENABLED, GAP, Kind
from scripts.fleet import FleetError, Stop, heeding_signals


def arguments(given: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults come")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn, and when")
    parser.add_argument("--pool", choices=("threads", "prefork"), default="threads")
    parser.add_argument("--chats", type=int, default=40, help="how many at once")
    parser.add_argument("--quick", action="store_true", help="short timings, for a short run")
    parser.add_argument("--only", type=kinds, default=ENABLED, help="kinds of faults, with commas")
    parser.add_argument("--gap", type=float, default=GAP, help="seconds between two faults")
    parser.add_argument("--mix", type=mix, default=ALL, help="what chats are about, with commas")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--logs", type=Path, help="keep logs, ledger and journal in this folder")
    return parser.parse_args(given)


def kinds(names: str) -> frozenset[Kind]:
    """The faults that are asked for, by the names in `schedule.py`."""
    try:
        return frozenset(Kind[name.strip().upper()] for name in names.split(","))
    except KeyError as error:
        known = ", ".join(kind.name.lower() for kind in Kind)
        raise argparse.ArgumentTypeError(f"no fault {error}; there are: {known}") from None


def mix(names: str) -> frozenset[Mix]:
    """What is asked for besides a worker's own tools; `none` is a mix, too."""
    if names == "none":
        return frozenset()
    try:
        return frozenset(Mix(name.strip()) for name in names.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; there are: {', '.join(Mix)}, none") from None


def main(given: list[str]) -> int:
    """Run, report, and leave nothing behind but the logs of a failure."""
    asked = arguments(given)
    # Celery's results complain when they are thrown away while Valkey is away: nobody waits there.
    sys.unraisablehook = lambda _: None
    folder = asked.logs or Path(tempfile.mkdtemp(prefix="rejoinder-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(
        asked.seconds,
        asked.seed,
        asked.pool,
        asked.chats,
        asked.quick,
        asked.only,
        asked.gap,
        asked.mix,
    )
    keep = asked.logs is not None
    with heeding_signals() as signals:
        try:
            made = Run(options, folder, signals).go()
        except Stop as stop:
            print("\nStopped.")
            return int(str(stop.code))
        except (FleetError, ServersError) as error:
            keep = True
            print(f"make chaos: {error}\nThe logs are in {folder}.")
            return 1
        else:
            keep = keep or not made.good
            print(report.show(made, folder if keep else None))
            if asked.json:
                report.write_json(made, asked.json)
            return 0 if made.good else 1
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Celery's results that nobody waits for any more would look for Valkey, one after the other.
    os._exit(code)
