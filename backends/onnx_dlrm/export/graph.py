"""A DLRM as an ONNX graph of standard operations: TorchRec's jagged inputs in, scores out.

Bags are pooled by scattering every looked-up row onto its bag's sum. The bag of each id comes
from the lengths alone: a mark at every bag's end, and the running sum of the marks.
"""

import numpy as np
from onnx import GraphProto, TensorProto, helper

from backends.dlrm.gather import DENSE, IDS
from backends.onnx_dlrm.export.builder import GraphBuilder
from backends.onnx_dlrm.export.storage import Storage
from backends.onnx_dlrm.export.weights import Linear, Weights

_LENGTHS, _VALUES = f"{IDS}.lengths", f"{IDS}.values"


def build(weights: Weights, name: str, output: str, storage: Storage) -> GraphProto:
    """Return the graph of ``weights``; its large tensors are written to ``storage``."""
    build = GraphBuilder(storage)
    features, dim = len(weights.tables), weights.dense[-1].bias.size
    dense = _mlp(build, "dense", weights.dense, DENSE, last_relu=True)
    rows = build.add("Shape", DENSE, start=0, end=1)
    ends, bags = _bags_of_ids(build)
    looked_up = _lookup(build, weights, build.add("Div", bags, rows))
    sums = _sums(build, looked_up, ends, bags, dim)
    shape = build.add("Concat", build.sizes(features), rows, build.sizes(dim), axis=0)
    by_feature = build.add("Reshape", sums, shape, allowzero=1)
    pooled = build.add("Transpose", by_feature, perm=[1, 0, 2])
    joined = _interact(build, dense, pooled, features + 1)
    logits = _mlp(build, "over", weights.over, joined, last_relu=False)
    scores = build.add("Sigmoid", logits) if weights.sigmoid else logits
    build.add("Reshape", scores, rows, out=output, allowzero=1)
    return _whole(build, name, weights, output)


def _whole(build: GraphBuilder, name: str, weights: Weights, output: str) -> GraphProto:
    floats, dense = TensorProto.FLOAT, weights.dense[0].weight.shape[1]
    inputs = [
        helper.make_tensor_value_info(DENSE, floats, ["rows", dense]),
        helper.make_tensor_value_info(_LENGTHS, TensorProto.INT32, [len(weights.tables), "rows"]),
        helper.make_tensor_value_info(_VALUES, TensorProto.INT64, ["ids"]),
    ]
    return build.graph(name, inputs, [helper.make_tensor_value_info(output, floats, ["rows"])])


def _mlp(
    build: GraphBuilder, part: str, layers: tuple[Linear, ...], value: str, *, last_relu: bool
) -> str:
    for number, layer in enumerate(layers):
        weight = build.constant(f"{part}.{number}.weight", layer.weight)
        bias = build.constant(f"{part}.{number}.bias", layer.bias)
        value = build.add("Gemm", value, weight, bias, transB=1)
        if last_relu or number + 1 < len(layers):
            value = build.add("Relu", value)
    return value


def _bags_of_ids(build: GraphBuilder) -> tuple[str, str]:
    """Return the end of every bag (bags,) and the bag of every id (ids,)."""
    axis, one = build.constant("axis", np.array(0)), build.sizes(1)
    flat = build.add("Reshape", _LENGTHS, build.sizes(-1))
    ends = build.add("CumSum", build.add("Cast", flat, to=TensorProto.INT64), axis)
    ids = build.add("Shape", _VALUES)
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    no_marks = build.add("ConstantOfShape", build.add("Add", ids, one), value=zero)
    each = build.add("Expand", one, build.add("Shape", ends))
    # A bag that ends where another did, an empty one, adds to its mark.
    marks = build.add("ScatterElements", no_marks, ends, each, axis=0, reduction="add")
    return ends, build.add("Slice", build.add("CumSum", marks, axis), build.sizes(0), ids)


def _lookup(build: GraphBuilder, weights: Weights, feature_of_ids: str) -> str:
    """Return the FP32 row of every id (ids, dim); all tables are stacked into one."""
    tables = weights.tables
    starts = np.cumsum([0, *(len(table.codes) for table in tables[:-1])])
    codes = build.constant("tables.codes", *(table.codes for table in tables))
    scales = [table.scale_bias for table in tables if table.scale_bias is not None]
    start = build.add("Gather", build.constant("tables.start", starts), feature_of_ids)
    row = build.add("Add", _VALUES, start)
    values = build.add("Cast", build.add("Gather", codes, row), to=TensorProto.FLOAT)
    if not scales:
        return values
    scale_bias = build.constant("tables.scale_bias", *scales)
    pair = build.add("Cast", build.add("Gather", scale_bias, row), to=TensorProto.FLOAT)
    scale = build.add("Gather", pair, build.sizes(0), axis=1)
    bias = build.add("Gather", pair, build.sizes(1), axis=1)
    return build.add("Add", build.add("Mul", values, scale), bias)


def _sums(build: GraphBuilder, looked_up: str, ends: str, bags: str, dim: int) -> str:
    """Return the sum of every bag (bags, dim)."""
    shape = build.add("Concat", build.add("Shape", ends), build.sizes(dim), axis=0)
    zeros = build.add("ConstantOfShape", shape)
    where = build.add("Unsqueeze", bags, build.sizes(1))
    return build.add("ScatterND", zeros, where, looked_up, reduction="add")


def _interact(build: GraphBuilder, dense: str, pooled: str, vectors: int) -> str:
    """Return the dense vector and the products of every pair, (rows, dim + pairs)."""
    first = build.add("Unsqueeze", dense, build.sizes(1))
    stacked = build.add("Concat", first, pooled, axis=1)
    products = build.add("MatMul", stacked, build.add("Transpose", stacked, perm=[0, 2, 1]))
    shape = build.add("Concat", build.add("Shape", dense, start=0, end=1),
                      build.sizes(vectors * vectors), axis=0)  # fmt: skip
    flat = build.add("Reshape", products, shape, allowzero=1)
    left, right = np.triu_indices(vectors, 1)
    pairs = build.add("Gather", flat, build.constant("pairs", left * vectors + right), axis=1)
    return build.add("Concat", dense, pairs, axis=1)
