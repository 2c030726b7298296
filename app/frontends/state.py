"""What front ends know of their engine: what it serves, and whether it is ready. Sans-IO."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from app.frontends.texts import FarVocabulary, Tokens
from app.frontends.wire import WireError
from scheduler.control import Refused
from scheduler.engine import Engine
from scheduler.models import not_served, still_loading
from scheduler.types import ModelSpec, TensorSpec
from scheduler.versions import LABELS


@dataclass(frozen=True, slots=True)
class State:
    """One moment of an engine; ``defaults`` has the version of each model that serves by default.

    ``controlled`` has the models that clients may load and unload, None where they may not.
    """

    started: bool = False
    live: bool = True
    ready: bool = False
    draining: bool = False
    refused: tuple[Refused, ...] = ()
    controlled: tuple[str, ...] | None = None
    specs: tuple[ModelSpec, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def spec(self, model: str, version: str) -> ModelSpec:
        """Return one model's spec, as ``Engine.spec``. Raises ServingError."""
        if not self.started:
            raise still_loading()
        if not model and len(self.defaults) == 1:
            (model,) = self.defaults
        found = version or self.defaults.get(model, "")
        for name in (found, self.labels.get((model, found))):
            for spec in self.specs:
                if (spec.name, spec.version) == (model, name):
                    return spec
        raise not_served(tuple(self.defaults), self.specs, model, version)


def encode_state(engine: Engine) -> bytes:
    """Return what front ends need to know of ``engine``."""
    specs = engine.specs()
    return orjson.dumps({
        "started": engine.started,
        "live": engine.live,
        "ready": engine.ready,
        "draining": engine.draining,
        "refused": [[one.model, one.version, one.reason] for one in engine.refused],
        "controlled": engine.control.names if engine.control else None,
        "specs": [_fields(spec) for spec in specs],
        "defaults": _defaults(engine, specs),
    })  # fmt: skip


def decode_state(payload: bytes, tokens: Tokens) -> State:
    """Return the state in ``payload``; its vocabularies give ``tokens``. Raises WireError."""
    try:
        fields = orjson.loads(payload)
        specs = tuple(_spec(each, tokens) for each in fields.pop("specs"))
        controlled = fields.pop("controlled")
        return State(
            refused=tuple(Refused(*each) for each in fields.pop("refused")),
            controlled=None if controlled is None else tuple(controlled),
            specs=specs,
            labels={(spec.name, label): spec.version for spec in specs for label in _labels(spec)},
            **fields,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"a state that is none: {error!r}") from error


def _defaults(engine: Engine, specs: Iterable[ModelSpec]) -> dict[str, str]:
    if not engine.started:
        return {}
    return {name: engine.spec(name).version for name in dict.fromkeys(one.name for one in specs)}


def _labels(spec: ModelSpec) -> list[str]:
    return [label for label in spec.properties.get(LABELS, "").split(",") if label]


def _fields(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "version": spec.version,
        "inputs": [_tensor_fields(one) for one in spec.inputs],
        "outputs": [_tensor_fields(one) for one in spec.outputs],
        "max_batch_rows": spec.max_batch_rows,
        "properties": dict(spec.properties),
        "max_request_rows": spec.max_request_rows,
        "id_policies": dict(spec.id_policies),
        "vocabularies": list(spec.vocabularies),
    }


def _spec(fields: dict[str, Any], tokens: Tokens) -> ModelSpec:
    inputs, outputs = (tuple(map(_tensor, fields.pop(key))) for key in ("inputs", "outputs"))
    vocabularies = {name: FarVocabulary(tokens, name) for name in fields.pop("vocabularies")}
    return ModelSpec(inputs=inputs, outputs=outputs, vocabularies=vocabularies, **fields)


def _tensor_fields(tensor: TensorSpec) -> tuple[Any, ...]:
    return (
        tensor.name, tensor.dtype.name, tensor.shape, tensor.labels, tensor.lengths,
        tensor.optional,
    )  # fmt: skip


def _tensor(fields: Sequence[Any]) -> TensorSpec:
    name, dtype, shape, labels, lengths, optional = fields
    return TensorSpec(name, np.dtype(dtype), tuple(shape), tuple(labels), lengths, optional)
