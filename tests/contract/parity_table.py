"""The parity suite's findings as a page of the documentation."""

from collections.abc import Mapping

from tests.contract.behaviours import BEHAVIOURS, Behaviour
from tests.contract.every_wire import Outcome

HEAD = """\
# Parity

What comes of the same request over each protocol and transport. Written by the contract suite
(`pytest tests/contract/test_parity.py --write-parity`), which fails when this page is out of date.

Scores are the same bit for bit in every cell of a row that says "scores". gRPC columns show the
gRPC status, HTTP columns the HTTP status. Where a row has a message it is the same, word for word,
in every cell; a note says why where it is not.

"""


def table(found: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Return the page; ``found`` is by the behaviour's name and the wire's."""
    wires = list(found[BEHAVIOURS[0].name])
    notes: list[str] = []
    lines = ["| request | " + " | ".join(wires) + " | message |", "|---" * (len(wires) + 2) + "|"]
    for behaviour in BEHAVIOURS:
        outcomes = found[behaviour.name]
        cells = [_cell(behaviour, wire, outcomes[wire]) for wire in wires]
        words = _words(behaviour, outcomes, notes)
        lines.append(f"| {behaviour.name} | " + " | ".join(cells) + f" | {words} |")
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return HEAD + "\n".join([*lines, "", *numbered, ""])


def _cell(behaviour: Behaviour, wire: str, outcome: Outcome) -> str:
    cannot_say = wire in behaviour.not_in and behaviour.code is not None
    return "cannot be said" if cannot_say else outcome.status or "scores"


def _words(behaviour: Behaviour, outcomes: Mapping[str, Outcome], notes: list[str]) -> str:
    note = ""
    if behaviour.why:
        if behaviour.why not in notes:
            notes.append(behaviour.why)
        note = f"note {notes.index(behaviour.why) + 1}"
    details = {outcome.detail for outcome in outcomes.values()}
    same = details.pop() if len(details) == 1 else ""
    return note or same.replace("|", "\\|")
