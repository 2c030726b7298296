"""What a model offers, in the Open Inference Protocol's protobuf."""

from collections.abc import Iterable, Sequence

from scheduler.types import ModelSpec
from transports.codecs.oip_tensors import (
    TensorInfo,
    input_infos,
    max_batch_size,
    optional_inputs,
    output_infos,
    properties,
)
from transports.proto.open_inference_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelMetadataResponse,
    ModelOutput,
    ModelParameter,
)

PLATFORM = "narsil"


def metadata_message(spec: ModelSpec, versions: Iterable[str]) -> ModelMetadataResponse:
    """Describe the model of ``spec``, which is served in ``versions``."""
    return ModelMetadataResponse(
        name=spec.name,
        versions=versions,
        platform=PLATFORM,
        inputs=map(_tensor_metadata, input_infos(spec)),
        outputs=map(_tensor_metadata, output_infos(spec)),
        properties=properties(spec),
    )


def config_message(spec: ModelSpec) -> ModelConfig:
    """Return Triton's description of the model of ``spec``.

    ``max_batch_size`` is the rows of one request; the batches that the server makes of several
    have the preferred size at most.
    """
    rows, optional = max_batch_size(spec), optional_inputs(spec)
    config = ModelConfig(
        name=spec.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=rows,
        input=[
            ModelInput(
                name=info.name,
                data_type=f"TYPE_{info.datatype}",
                dims=_dims(info, rows),
                optional=info.name in optional,
            )
            for info in input_infos(spec)
        ],
        output=[
            ModelOutput(name=info.name, data_type=f"TYPE_{info.datatype}", dims=_dims(info, rows))
            for info in output_infos(spec)
        ],
        parameters={
            name: ModelParameter(string_value=value) for name, value in properties(spec).items()
        },
    )
    if rows and spec.properties.get("scheduler.mode", "batch") == "batch":
        config.dynamic_batching.CopyFrom(_batching(spec))
    return config


def _batching(spec: ModelSpec) -> ModelDynamicBatching:
    # The scheduler writes its options, as they hold for this model, into the properties.
    delay_s = float(spec.properties.get("scheduler.max_delay_s", "0"))
    return ModelDynamicBatching(
        preferred_batch_size=[spec.max_batch_rows],
        max_queue_delay_microseconds=round(delay_s * 1e6),
        priority_levels=int(spec.properties.get("scheduler.priorities", "0")),
        default_priority_level=1,
    )


def _tensor_metadata(info: TensorInfo) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(
        name=info.name, datatype=info.datatype, shape=info.shape
    )


def _dims(info: TensorInfo, max_batch_size: int) -> Sequence[int]:
    return info.shape[1:] if max_batch_size else info.shape
