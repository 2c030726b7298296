"""The reader that runs no PyTorch sees the tensors that PyTorch sees, byte for byte."""

from pathlib import Path

import numpy as np
import torch

from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.torchscript import load_module
from backends.torchscript_file.reader import read_torchscript


def test_every_tensor_of_an_artifact_is_the_one_that_pytorch_loads(small_artifact: Path) -> None:
    path = small_artifact / MODEL_FILE
    root = read_torchscript(path, verify=True).root
    module = load_module(path, torch.device("cpu"))
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lookup = "_module.sparse_arch.embedding_bag_collection.tbes.0"
    script = module
    for name in lookup.split("."):
        script = getattr(script, name)
    tensors.append((f"{lookup}.weights_host", script.weights_host))
    assert len(tensors) > 10
    for name, tensor in tensors:
        found = root.tensor(name)
        assert found is not None, name
        assert found.dtype == tensor.detach().numpy().dtype, name
        assert np.array_equal(found, tensor.detach().numpy()), name
