"""The cuTile kernel as far as it goes without a GPU: to bytecode."""

import io

import pytest

from backends.kernels.sizes import power_of_two

ct = pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")
compilation = pytest.importorskip("cuda.tile.compilation")


@pytest.mark.parametrize(("features", "dim"), [(26, 64), (5, 13)])
def test_the_cutile_kernel_compiles_to_bytecode(features: int, dim: int) -> None:
    kernel = pytest.importorskip("backends.kernels.interaction_cutile").kernel
    arrays = [
        compilation.ArrayConstraint(
            ct.float32, axes, index_dtype=ct.int32, stride_lower_bound_incl=0,
            alias_groups=(), may_alias_internally=False,
        )
        for axes in (2, 3, 2)
    ]  # fmt: skip
    sizes = features, dim, power_of_two(features + 1), power_of_two(dim)
    convention = compilation.CallingConvention.cutile_python_v1()
    signature = compilation.KernelSignature([*arrays, *sizes], convention)
    file = io.BytesIO()
    compilation.export_kernel(
        kernel, [signature], file, output_format="tileir_bytecode", bytecode_version="13.3"
    )
    assert b"kernel" in file.getvalue()
