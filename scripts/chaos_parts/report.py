"""What a run comes to: counts, figures, findings, a verdict; for people, and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Journal, Outcome
from scripts.chaos_parts.picture import Picture
from scripts.chaos_parts.recovery import Figures


@dataclass
class Report:
    """Everything to be told."""

    seed: int
    pool: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    rest_seconds: float | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def counts(evidence: Evidence, requests: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How much went on."""
    picture, journal = evidence.picture, evidence.journal
    outcomes = Counter(str(asked.outcome) for asked in journal.asked)
    states = Counter(turn.state for turn in picture.turns)
    became = Counter(request["became"] for request in requests)
    complete = Counter((r["id"], r["step"]) for r in requests if r["became"] == "complete")
    return {
        "chats": len(picture.chats),
        "messages asked": len(journal.asked),
        **{f"messages {name}": number for name, number in sorted(outcomes.items())},
        "turns": len(picture.turns),
        **{f"turns {name}": number for name, number in sorted(states.items())},
        "turns joined by steering": sum(turn.joined_id is not None for turn in picture.turns),
        "chats below others": sum(chat.parent_id is not None for chat in picture.chats),
        "summaries": sum(m.compressed and m.role == "user" for m in picture.messages),
        "history entries": len(picture.messages),
        "steps": sum(
            move.new_status == "running" for move in picture.trail if move.old_status == "pending"
        ),
        "model calls": len(requests),
        **{f"model calls {name}": number for name, number in sorted(became.items())},
        "model calls paid twice": sum(number - 1 for number in complete.values()),
        "tool calls": len(picture.calls),
        **_calls(picture),
        **_decisions(journal),
        **_commands(journal),
        "tool runs": sum(line["what"] == "begin" for line in evidence.ledger),
        "tool calls with an unknown outcome": sum(c.state == "unknown" for c in picture.calls),
    }


def _calls(picture: Picture) -> dict[str, int]:
    kinds = Counter(call.kind for call in picture.calls if call.kind != "local")
    late = sum("No answer came" in str(call.result) for call in picture.calls)
    named = {f"tool calls for {kind}": number for kind, number in sorted(kinds.items())}
    return {**named, "tool calls that nobody answered": late}


def _decisions(journal: Journal) -> dict[str, int]:
    said = Counter((d.what, str(d.outcome)) for d in journal.decisions)
    return {f"office: {what} {outcome}": n for (what, outcome), n in sorted(said.items())}


def _commands(journal: Journal) -> dict[str, int]:
    given = Counter((c.verb, str(c.outcome)) for c in journal.commands)
    gone = sum(
        c.outcome is Outcome.ACCEPTED and journal.may_be_lost(c.task_id) for c in journal.commands
    )
    named = {f"commands: {verb} {outcome}": n for (verb, outcome), n in sorted(given.items())}
    gap = sum(map(journal.fell_into_the_gap, journal.commands))
    excused = {
        "commands excused: in the broker when it lost everything": gone - gap,
        "commands excused: taken from Redis by a worker killed before kombu noted it": gap,
    }
    return named | excused


def faults(journal: Journal) -> dict[str, int]:
    """How often each fault took place."""
    return dict(sorted(Counter(str(fault.kind) for fault in journal.faults).items()))


def show(report: Report, logs: Path | None) -> str:
    """The whole report, for people."""
    lines = [f"seed {report.seed}, pool {report.pool}, {report.seconds:.0f} s of faults", ""]
    lines += [f"  {number:>7,}  {name}" for name, number in report.counts.items()]
    lines += ["", "faults"]
    lines += [f"  {number:>7}  {name}" for name, number in report.faults.items()]
    lines += [f"  {number:>7}  skipped: {name}" for name, number in report.skipped.items()]
    width = max(map(len, report.figures), default=0)
    lines += ["", f"{'seconds':{width + 2}} {'n':>6} {'p50':>8} {'p99':>8} {'max':>8}"]
    lines += [
        f"  {name:{width}} {f.n:>6} {f.p50:>8.2f} {f.p99:>8.2f} {f.longest:>8.2f}"
        for name, f in report.figures.items()
    ]
    if report.rest_seconds is not None:
        lines += ["", f"all chats at rest {report.rest_seconds:.1f} s after the last fault"]
    if report.findings:
        lines += ["", "findings"]
        lines += [f"  {finding}" for finding in report.findings]
    lines += ["", _verdict(report, logs)]
    return "\n".join(lines)


def _verdict(report: Report, logs: Path | None) -> str:
    if report.good:
        return "PASS: nothing was lost, stuck, doubled or out of order."
    kinds = Counter(finding.rule for finding in report.findings)
    said = ", ".join(f"{number} {rule}" for rule, number in kinds.most_common())
    kept = f" Logs, ledger and journal are in {logs}." if logs else ""
    again = f" Again: make chaos SEED={report.seed} POOL={report.pool} SECONDS={report.seconds:.0f}"
    return f"FAIL: {said}.{kept}{again}"


def write_json(report: Report, path: Path) -> None:
    """The same, for programs."""
    data = asdict(report) | {"verdict": "pass" if report.good else "fail"}
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def write_journal(journal: Journal, path: Path) -> None:
    """What was asked and done, line by line in the order of time, for those who look for causes."""
    entries: list[dict[str, Any]] = [
        *({"at": a.asked_at, "asked": asdict(a)} for a in journal.asked),
        *({"at": s.at, "stop": asdict(s)} for s in journal.stops),
        *({"at": d.asked_at, "decision": asdict(d)} for d in journal.decisions),
        *({"at": c.at, "compact": asdict(c)} for c in journal.compactions),
        *({"at": c.asked_at, "command": asdict(c)} for c in journal.commands),
        *({"at": f.at, "fault": asdict(f)} for f in journal.faults),
        *({"at": o.began, "outage": asdict(o)} for o in journal.outages),
    ]
    entries.sort(key=lambda entry: float(str(entry["at"])))
    _write_lines(path, entries)


def write_trail(picture: Picture, path: Path) -> None:
    """Every move of every chat, the same way."""
    _write_lines(path, [asdict(move) for move in picture.trail])


def write_rows(picture: Picture, path: Path) -> None:
    """What stands in the database, without the trail: turns, messages, calls."""
    rows: dict[str, Sequence[Any]]
    rows = {"turn": picture.turns, "message": picture.messages, "call": picture.calls}
    _write_lines(path, [{kind: asdict(row)} for kind, each in rows.items() for row in each])


def _write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(e) + "\n" for e in entries), encoding="utf-8")
