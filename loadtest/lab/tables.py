"""Print figures as a Markdown table."""

from collections.abc import Mapping, Sequence


def print_table(lines: Sequence[Mapping[str, float | str]]) -> None:
    """Print one row a line, with the keys of the first as the head."""
    print("|", " | ".join(lines[0]), "|")
    print("|", " | ".join("---" for _ in lines[0]), "|")
    for line in lines:
        print("|", " | ".join(_cell(value) for value in line.values()), "|")


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
