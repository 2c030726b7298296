"""The sizes of a DLRM, and the two that we export by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """Size one DLRM; ``features`` are in wire order, ``dense_layers`` ends with ``dim``.

    The bags of features in ``averaged`` are, those of others are summed.
    """

    features: tuple[str, ...]
    table_rows: tuple[int, ...]
    dim: int
    dense_names: tuple[str, ...]
    dense_layers: tuple[int, ...]
    over_layers: tuple[int, ...]
    averaged: frozenset[str] = frozenset()

    @property
    def over_inputs(self) -> int:
        """Width of the interaction: the dense vector and every pair of the dim-wide vectors."""
        vectors = len(self.features) + 1
        return self.dim + vectors * (vectors - 1) // 2


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Return ``prefix_0``, ``prefix_1``, ...: the names of the Criteo columns."""
    return tuple(f"{prefix}_{number}" for number in range(count))


def _criteo(rows: int, dense_layers: tuple[int, ...], over_layers: tuple[int, ...]) -> DlrmShape:
    return DlrmShape(
        features=numbered("cat", 26),
        table_rows=(rows,) * 26,
        dim=dense_layers[-1],
        dense_names=numbered("int", 13),
        dense_layers=dense_layers,
        over_layers=over_layers,
    )


# How the rows of an exported model's tables can be stored.
TABLES = ("int8", "int4", "fp16", "fp32")

PRESETS: Mapping[str, DlrmShape] = MappingProxyType(
    {
        "reference": _criteo(100_000, (512, 256, 64), (512, 512, 256, 1)),
        "small": _criteo(1_000, (64, 32, 16), (64, 32, 1)),
    }
)
