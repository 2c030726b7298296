"""What can be set for a model repository."""

import math
from dataclasses import dataclass, field

NONE, POLL, EXPLICIT = "none", "poll", "explicit"
MODES = (NONE, POLL, EXPLICIT)


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Serve a folder of models, each a folder of versions."""

    url: str = field(
        default="", metadata={"help": "folder, file:// or any URL that fsspec reads (s3://...)"}
    )
    mode: str = field(
        default=NONE,
        metadata={
            "help": "none: load all at the start; poll: and follow changes; explicit: what clients"
            " load (server.model_control)"
        },
    )
    poll_s: float = field(default=10.0, metadata={"help": "seconds between two looks"})
    settle_s: float = field(
        default=2.0,
        metadata={"help": "seconds that files must stay unchanged before they are loaded"},
    )
    load: tuple[str, ...] = field(
        default=(), metadata={"help": "mode explicit: the models to load at the start"}
    )
    cache_dir: str = field(
        default="~/.cache/narsil/repository", metadata={"help": "copies of what lies elsewhere"}
    )
    scan_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds of no listing after which it counts as vanished"}
    )
    load_timeout_s: float = field(
        default=600.0,
        metadata={"help": "seconds after which a load is reported, and nobody waits for it"},
    )
    loads_at_once: int = field(
        default=2, metadata={"help": "models, or versions of them, that are loaded side by side"}
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be {' or '.join(MODES)}, got {self.mode!r}")
        if self.load and self.mode != EXPLICIT:
            raise ValueError(f"load is for mode explicit, and the mode is {self.mode}")
        for name in ("poll_s", "scan_timeout_s", "load_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}")
        if self.loads_at_once < 1:
            raise ValueError(f"loads_at_once must be at least 1, got {self.loads_at_once}")
        if not 0 <= self.settle_s < math.inf:
            raise ValueError(f"settle_s must be 0 or more, got {self.settle_s:g}")
