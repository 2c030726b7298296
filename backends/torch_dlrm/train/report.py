"""metrics.json: how good a trained model is, on what, beside what."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

METRICS_FILE = "metrics.json"


@dataclass(frozen=True, slots=True)
class Report:
    """AUC and log loss by model on the test part, and how the data were split and trained on.

    ``models`` has the baselines too; ``validation_aucs`` is one an epoch.
    """

    data: str
    seed: int
    split: Mapping[str, Mapping[str, float]]
    validation_aucs: tuple[float, ...]
    models: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]

    def write(self, folder: Path) -> None:
        """Write it into ``folder``."""
        text = json.dumps(asdict(self), indent=2)
        (folder / METRICS_FILE).write_text(text + "\n", encoding="utf-8")

    def table(self) -> Table:
        """Return the models as a table for a terminal."""
        table = Table("on held-out ratings", "AUC", "log loss", box=None, pad_edge=False)
        for name, quality in self.models.items():
            table.add_row(name, f"{quality['auc']:.4f}", f"{quality['log_loss']:.4f}")
        return table
