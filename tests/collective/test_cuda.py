"""The same over NCCL: a GPU for each side, as NCCL takes no two ranks on one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from backends.fake import FakeBackend, FakeOptions
from tests.collective.test_serve import collective_url
from tests.e2e.process import narsil_serve
from tests.fixtures.gates import make_request
from transports.collective.client import CollectiveClient

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


def test_scores_over_nccl_are_right_from_either_kind_of_memory(tmp_path: Path) -> None:
    arguments = ["--backend", "fake", "--collective-backend", "nccl"]
    serving = narsil_serve(tmp_path, arguments, transports=("http", "collective"))
    fake = FakeBackend(FakeOptions())
    with serving as process, CollectiveClient(collective_url(process), device="cuda:1") as client:
        for rows in (0, 1, 100):
            request = make_request(rows, seed=rows)
            on_gpu = {
                name: torch.from_numpy(array).to("cuda:1") for name, array in request.inputs.items()
            }
            for inputs in (request.inputs, on_gpu):
                scores = client.predict(inputs)["default"]
                assert scores.device.type == "cuda"
                assert np.array_equal(scores.cpu(), fake.score(request))


def test_a_caller_that_goes_leaves_the_server_to_the_next(tmp_path: Path) -> None:
    arguments = ["--backend", "fake", "--collective-backend", "nccl"]
    with narsil_serve(tmp_path, arguments, transports=("http", "collective")) as process:
        for seed in range(3):
            with CollectiveClient(collective_url(process), device="cuda:1") as client:
                assert len(client.predict(make_request(2, seed).inputs)["default"]) == 2
