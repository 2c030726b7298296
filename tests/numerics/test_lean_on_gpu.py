"""The lean plan on a fake GPU: what is proven there serves, what is not is replaced."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.dlrm.manifest import MODEL_FILE
from backends.kernels.interaction import Interact
from backends.torch_dlrm.answers import ANSWERS_FILE, read_answers
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.gpu import interaction, tables
from backends.torch_dlrm.gpu.hardware import Graph
from backends.torch_dlrm.gpu.load import Proof, lean_on_gpu
from backends.torch_dlrm.options import TorchDlrmOptions
from backends.torch_dlrm.probes import TOLERANCE, difference, doubt, make_probes
from backends.torch_dlrm.recognise import NotRecognisedError, recognise
from backends.torch_dlrm.runtime import Runtime
from backends.torch_dlrm.serving import Serving
from backends.torch_dlrm.weights import Dlrm
from backends.torchscript_file.reader import read_torchscript
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.artifacts import take_rows
from tests.fixtures.fake_gpu import FakeGpu, FakeStream, no_memory

ROWS = 24


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors: teams of threads wait longer for each other than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dlrm(small_artifact: Path) -> Dlrm:
    """The weights of the artifact, as mapped."""
    return recognise(read_torchscript(small_artifact / MODEL_FILE).root)


@pytest.fixture(scope="module")
def proof(small_artifact: Path, dlrm: Dlrm) -> Proof:
    """Compares with what the artifact answered at its export."""
    answers = read_answers(small_artifact / ANSWERS_FILE)
    assert answers is not None
    return partial(doubt, dlrm, probes=make_probes(dlrm), theirs=answers.scores)


def serve(dlrm: Dlrm, proof: Proof, gpu: FakeGpu, lanes: int = 1, **options: str) -> Serving:
    chosen = {"interaction": "torch", **options}
    order = TorchDlrmOptions("", max_batch_rows=ROWS, **chosen)  # type: ignore[arg-type]
    return lean_on_gpu(order, dlrm, OUTPUT, lanes, proof, gpu)


@pytest.mark.parametrize(("where", "graphs"), [("copy", "auto"), ("copy", "off"), ("uvm", "auto")])
def test_it_scores_as_the_artifact_with_graphs_and_without_wherever_the_tables_are(
    dlrm: Dlrm, proof: Proof, golden: Golden, where: str, graphs: str
) -> None:
    gpu = FakeGpu()
    serving = serve(dlrm, proof, gpu, lanes=2, tables=where, graphs=graphs)
    runtime, replays = Runtime(serving, ()), gpu.replays
    for start, rows in itertools.product((0, 50), (0, 1, 3, 24)):
        request = take_rows(golden.request(), start, start + rows)
        scores = runtime.prepare(Batch((request,)))()[OUTPUT]
        wanted = golden.served[OUTPUT][start : start + rows]
        assert difference(scores, wanted) <= TOLERANCE
    properties = serving.properties
    assert (properties["tables"], properties["interaction"]) == (where, "torch")
    if graphs == "off":
        assert (gpu.replays, properties["graphs"]) == (0, "off: not wanted")
    else:
        assert gpu.replays == replays + 8
        assert properties["graphs"] == "6 up to 24 rows"


def test_rows_and_tables_begin_where_the_cuda_lookup_may_read(dlrm: Dlrm) -> None:
    placed = tables.place(dlrm.tables, FakeGpu(), managed=False)
    assert (placed.starts % 128 == 0).all()
    width, narrow = 32, dlrm.tables.row_bytes(3)
    assert (dlrm.tables.dim, narrow) == (16, 20)
    rows = int(dlrm.tables.rows[3])
    block = placed.device[placed.starts[3] : placed.starts[3] + rows * width].reshape(rows, width)
    np.testing.assert_array_equal(
        block[:, :narrow].numpy(), dlrm.tables.row_block(3).reshape(rows, narrow)
    )


def test_features_that_share_a_table_share_it_on_the_device(dlrm: Dlrm) -> None:
    starts = dlrm.tables.starts.copy()
    starts[5] = starts[2]
    placed = tables.place(replace(dlrm.tables, starts=starts), FakeGpu(), managed=False)
    assert placed.starts[5] == placed.starts[2]
    assert len(set(placed.starts.tolist())) == dlrm.tables.features - 1


def test_tables_that_do_not_fit_are_refused_with_what_would_help(dlrm: Dlrm, proof: Proof) -> None:
    gpu = FakeGpu()
    gpu.free = 1 << 30
    with pytest.raises(
        LoadError, match=r"the tables take 0 MiB; cpu has 1024 MiB free.*--tables uvm"
    ):
        serve(dlrm, proof, gpu)
    assert serve(dlrm, proof, gpu, tables="uvm", graphs="off").most_rows == ROWS


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"dim": 18}, "18 wide, no multiple of 4"), ({"rows": np.array([2**32])}, "more than")],
)
def test_tables_that_the_cuda_lookup_would_misread_are_not_served_so(
    dlrm: Dlrm, change: dict[str, int], complaint: str
) -> None:
    with pytest.raises(NotRecognisedError, match=complaint):
        tables.check_tables(replace(dlrm.tables, **change))  # type: ignore[arg-type]


class Forgetful(FakeStream):
    """Its graphs go on to answer what they answered first."""

    def capture(self, work: Callable[[], dict[str, torch.Tensor]]) -> Graph:
        graph = super().capture(work)
        replays = iter([graph.replay])

        def replay() -> None:
            for first in replays:
                first()
                break

        return Graph(replay, graph.outputs)


class ForgetfulGpu(FakeGpu):
    def stream(self) -> FakeStream:
        return Forgetful(self)


def test_graphs_that_answer_something_else_are_found_out_and_dropped(
    dlrm: Dlrm, proof: Proof
) -> None:
    properties = serve(dlrm, proof, ForgetfulGpu()).properties
    assert properties["graphs"].startswith("off: ")
    assert "probe rows differ by" in properties["graphs"]


def test_a_capture_that_fails_leaves_the_operators(dlrm: Dlrm, proof: Proof) -> None:
    gpu = FakeGpu()

    def fail() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    gpu.before_capture = fail
    properties = serve(dlrm, proof, gpu).properties
    assert properties["graphs"] == (
        "off: no capture of 24 rows: CUDA error: operation not permitted when stream is capturing"
    )


def test_where_memory_ends_batches_end(dlrm: Dlrm, proof: Proof) -> None:
    gpu = FakeGpu()
    captures = itertools.count()

    def fail_first() -> None:
        if next(captures) == 0:
            raise no_memory()

    gpu.before_capture = fail_first
    serving = serve(dlrm, proof, gpu)
    assert serving.most_rows == 12
    assert serving.properties["graphs"] == "4 up to 8 rows"


def test_a_model_that_scores_otherwise_is_not_served(dlrm: Dlrm, proof: Proof) -> None:
    last = dlrm.over[-1]
    other = replace(dlrm, over=(*dlrm.over[:-1], replace(last, bias=last.bias + 1)))
    with pytest.raises(NotRecognisedError, match="not proven to score as the artifact does"):
        serve(other, proof, FakeGpu())


def fused(dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """A right kernel, made of operators."""
    every = torch.cat((dense[:, None], pooled), 1)
    first, second = torch.triu_indices(every.shape[1], every.shape[1], 1)
    return torch.cat((dense, (every @ every.transpose(1, 2))[:, first, second]), 1)


def wrong(dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """A kernel that is off in its last product."""
    found = fused(dense, pooled)
    found[:, -1] += 0.01
    return found


def broken(dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """A kernel that does not compile."""
    raise RuntimeError("Failed to find C compiler.\nmore")


@pytest.mark.parametrize(
    ("kernel", "name", "why"),
    [
        (fused, "triton", ""),
        (wrong, "torch", "it is off by 0.01"),
        (broken, "torch", "triton failed: RuntimeError: Failed to find C compiler."),
    ],
)
def test_a_kernel_serves_if_it_is_proven_right_here(
    dlrm: Dlrm, kernel: Interact, name: str, why: str
) -> None:
    found, used, reason = interaction.pick("auto", dlrm, FakeGpu(), lambda name: kernel)
    assert (found, used) == (name, kernel if name == "triton" else None)
    assert reason.startswith(why)
    if why:
        with pytest.raises(LoadError, match=r"--interaction cutile: .+"):
            interaction.pick("cutile", dlrm, FakeGpu(), lambda name: kernel)


def test_a_kernel_is_off_where_a_model_keeps_other_products(dlrm: Dlrm) -> None:
    other = replace(dlrm, pairs=dlrm.pairs[:, ::-1])
    name, _, why = interaction.pick("auto", other, FakeGpu(), lambda name: fused)
    assert (name, why) == (
        "torch",
        "the model keeps other products than those of all pairs in order",
    )


def test_a_proven_kernel_serves_inside_the_graphs(
    dlrm: Dlrm, proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interaction.pick, "__defaults__", (lambda name: fused,))
    properties = serve(dlrm, proof, FakeGpu(), interaction="auto").properties
    assert (properties["interaction"], properties["graphs"]) == ("triton", "6 up to 24 rows")
