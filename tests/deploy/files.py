"""The files that deploy, read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "narsil.json"


def compose() -> dict[str, Any]:
    """Return docker-compose.yml, its variables at their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def loaded(*parts: str) -> Any:
    """Return a YAML file of deploy/."""
    return yaml.safe_load(DEPLOY.joinpath(*parts).read_text())


def environment() -> dict[str, str]:
    """Return what compose's own .env sets."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, each with its arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    split = (line.partition(" ") for line in lines if line)
    return [(word, rest.strip()) for word, _, rest in split]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, those it inherits first; FROM apart."""
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = found[name] = list(found.get(base, []))
        else:
            current.append((word, rest))
    return found


def last(stage: str, word: str) -> str:
    """Return the arguments of the last ``word`` of a stage, which is the one that holds."""
    return [rest for each, rest in stages()[stage] if each == word][-1]


def image_environment(stage: str) -> dict[str, str]:
    """Return what the stage's ENV instructions set."""
    pairs = " ".join(rest for word, rest in stages()[stage] if word == "ENV").split()
    return dict(pair.split("=", 1) for pair in pairs)


def queries() -> Iterator[str]:
    """Yield every PromQL expression of the dashboard, its variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m")
            yield re.sub(r"\$(model|instance)", ".*", text)


def alerts() -> Iterator[tuple[str, str]]:
    """Yield the name and the PromQL expression of every alert."""
    for group in loaded("alerts.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def adapter_queries() -> Iterator[str]:
    """Yield the queries of prometheus-adapter's rules, filled in as it does."""
    for rule in loaded("kubernetes", "adapter-rules.yaml")["rules"]["custom"]:
        query: str = rule["metricsQuery"]
        query = query.replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        query = query.replace("<<.LabelMatchers>>", 'instance=~".+"')
        yield query.replace("<<.GroupBy>>", "instance")
