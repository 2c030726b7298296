"""A TorchRec DLRM: built, given weights, its tables quantised, scripted. Needs torchrec."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from torchrec.distributed.fused_params import FUSED_PARAM_QUANT_STATE_DICT_SPLIT_SCALE_BIAS
from torchrec.distributed.global_settings import get_propogate_device, set_propogate_device
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.fx.tracer import Tracer
from torchrec.inference.modules import (
    DEFAULT_FUSED_PARAMS,
    PredictModule,
    assign_weights_to_tbe,
    get_table_to_weights_from_tbe,
    quantize_inference_model,
    shard_quant_model,
)
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.export.golden import LENGTHS, OUTPUT, VALUES
from backends.torch_dlrm.export.presets import DlrmShape
from scheduler.types import Array

# Default initialisation gives scores that differ by 6e-5: no test of them could fail.
_TABLE_BOUND = 0.4
# How the rows of tables can be stored, and what TorchRec calls it.
_TABLE_DTYPES = {
    "fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8, "int4": torch.quint4x2,
}  # fmt: skip


class DlrmPredict(PredictModule):  # type: ignore[misc]  # torchrec is untyped
    """Give a DLRM the interface of TorchRec's packager: named tensors in, named scores out."""

    def __init__(self, dlrm: DLRM, features: tuple[str, ...], device: torch.device) -> None:
        super().__init__(dlrm, str(device))
        self._features = list(features)

    def predict_forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the sigmoid of each row's logit, on the host and complete."""
        ids = KeyedJaggedTensor(keys=self._features, lengths=batch[LENGTHS], values=batch[VALUES])
        scores = self.predict_module(batch[DENSE], ids).sigmoid()
        return {OUTPUT: scores.reshape([scores.size()[0]]).to(torch.device("cpu")).float()}


def build(shape: DlrmShape) -> DLRM:
    """Return an FP32 DLRM on the host; give it weights next."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=shape.dim,
            num_embeddings=rows,
            feature_names=[feature],
            pooling=PoolingType.MEAN if feature in shape.averaged else PoolingType.SUM,
        )
        for feature, rows in zip(shape.features, shape.table_rows, strict=True)
    ]
    host = torch.device("cpu")
    return DLRM(
        EmbeddingBagCollection(tables=tables, device=host),
        len(shape.dense_names),
        list(shape.dense_layers),
        list(shape.over_layers),
        host,
    )


@torch.no_grad()
def seed_weights(dlrm: DLRM, seed: int, shape: DlrmShape, inputs: Mapping[str, Array]) -> None:
    """Draw weights whose logits over ``inputs`` have mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in dlrm.named_parameters():
        bound = _TABLE_BOUND
        if "embedding_bags" not in name:
            bound = math.sqrt(6 / parameter.shape[-1]) if parameter.ndim == 2 else 0.0
        parameter.uniform_(-bound, bound, generator=generator)
    logits = torch.logit(scores(dlrm, shape, inputs))
    last = dlrm.over_arch.model[-1]
    last.weight.div_(logits.std())
    last.bias.copy_(-logits.mean() / logits.std())


@torch.inference_mode()
def scores(dlrm: DLRM, shape: DlrmShape, inputs: Mapping[str, Array]) -> torch.Tensor:
    """Return the FP32 model's scores for one request."""
    host = torch.device("cpu")
    model = DlrmPredict(dlrm, shape.features, host)
    answer: dict[str, torch.Tensor] = model(tensors(inputs, host))
    return answer[OUTPUT]


def tensors(inputs: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
    """Return one request's inputs as the artifact takes them: lengths flat, ids int32."""
    kinds = {DENSE: torch.float32, LENGTHS: torch.int32, VALUES: torch.int32}
    host = {**inputs, LENGTHS: inputs[LENGTHS].reshape(-1)}
    return {name: torch.from_numpy(host[name]).to(device, kind) for name, kind in kinds.items()}


def package(
    dlrm: DLRM,
    shape: DlrmShape,
    device: torch.device,
    inputs: Mapping[str, Array],
    tables: str = "int8",
) -> torch.jit.ScriptModule:
    """Store the tables of ``dlrm`` as ``tables``, in place; shard for one device, trace, script."""
    with _device_propagated():
        quantised = quantize_inference_model(
            DlrmPredict(dlrm, shape.features, device), quantization_dtype=_TABLE_DTYPES[tables]
        )
        # Sharding makes new, zeroed tables; the quantised rows have to be carried over.
        rows = get_table_to_weights_from_tbe(quantised)
        sharded, _ = shard_quant_model(
            quantised,
            compute_device=device.type,
            sharding_device=str(device),
            sharders=[_sharder()],
        )
        assign_weights_to_tbe(sharded, rows)
        sharded.to(device)
        # The first forward makes the modules that distribute the inputs; tracing needs them.
        sharded(tensors(inputs, device))
        leaves = [IntNBitTableBatchedEmbeddingBagsCodegen.__name__]
        graph = Tracer(leaf_modules=leaves).trace(sharded)
        scripted: torch.jit.ScriptModule = torch.jit.script(torch.fx.GraphModule(sharded, graph))
    return scripted


def _sharder() -> QuantEmbeddingBagCollectionSharder:
    """Return TorchRec's own, without the scales and biases in a state dict that nobody reads.

    Rows in floating point have none, and its bookkeeping fails on them with an AttributeError.
    """
    split = {FUSED_PARAM_QUANT_STATE_DICT_SPLIT_SCALE_BIAS: False}
    return QuantEmbeddingBagCollectionSharder(fused_params={**DEFAULT_FUSED_PARAMS, **split})


@contextmanager
def _device_propagated() -> Iterator[None]:
    """Let TorchRec trace with the device it shards for; the setting is global, so restore it."""
    before = get_propogate_device()
    set_propogate_device(True)
    try:
        yield
    finally:
        set_propogate_device(before)
