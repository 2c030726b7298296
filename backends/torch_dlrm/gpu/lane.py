"""One lane of the device: a stream, the memory it reads, and the graphs it replays."""

from collections.abc import Mapping

import torch

from backends.torch_dlrm.gpu.faults import Fault, fault_of
from backends.torch_dlrm.gpu.forward import Forward
from backends.torch_dlrm.gpu.hardware import Gpu, Graph
from backends.torch_dlrm.gpu.limit import RowLimit, out_of_memory
from backends.torch_dlrm.gpu.packing import Form, Packed
from scheduler.errors import DeviceLostError
from scheduler.types import Array


class Lane:
    """Compute one batch at a time: one copy in, a graph or the operators, one copy out, one wait.

    Graphs read a buffer of their own, ``static``; a batch that is larger gets memory of its own and
    runs without one.
    """

    def __init__(self, gpu: Gpu, form: Form, forward: Forward, limit: RowLimit, size: int) -> None:
        """Reserve ``size`` bytes for the inputs."""
        self._gpu, self._form, self._forward, self._limit = gpu, form, forward, limit
        self._stream = gpu.stream()
        self._static = gpu.empty(size)
        # Zeros are valid lengths and ids, which a capture's warm-up reads.
        self._stream.run(self._static.zero_)
        self._stream.wait()
        self._graphs: dict[int, Graph] = {}

    def capture(self, rows: int) -> None:
        """Capture the forward of ``rows`` rows. Raises RuntimeError."""
        room = self._static.numel() - self._form.ids_at(rows)
        views = self._form.views(self._static, rows, room // self._form.id_bytes)
        self._graphs[rows] = self._stream.capture(lambda: self._forward(*views))

    def run(self, packed: Packed) -> dict[str, Array]:
        """Compute ``packed``; the outputs own their memory and are complete on return.

        Raises DeviceLostError after an error that sticks, ServingError if memory ran out.
        """
        try:
            outputs = self._run(packed)
        except RuntimeError as error:
            raise self._explained(error, packed.rows) from error
        except BaseException:
            # A kernel's compiler has errors of its own; the copy before it may still be reading.
            self._settles()
            raise
        self._limit.succeeded()
        return outputs

    def _run(self, packed: Packed) -> dict[str, Array]:
        stream, size = self._stream, packed.host.numel()
        fits = size <= self._static.numel()
        inputs = self._static if fits else stream.run(lambda: self._gpu.empty(size))
        stream.copy(inputs[:size], packed.host)
        graph = self._graphs.get(packed.padded_rows) if fits else None
        if graph is not None:
            stream.run(graph.replay)
            outputs = graph.outputs
        else:
            views = self._form.views(inputs, packed.padded_rows, packed.ids)
            outputs = stream.run(lambda: self._forward(*views))
        hosted = self._to_host(outputs, packed.rows)
        stream.wait()
        return {name: tensor.numpy() for name, tensor in hosted.items()}

    def _to_host(self, outputs: Mapping[str, torch.Tensor], rows: int) -> dict[str, torch.Tensor]:
        # What the artifact has copied to the host itself is complete after the wait, too.
        return {
            name: self._stream.to_host(tensor[:rows]) if self._gpu.has(tensor) else tensor[:rows]
            for name, tensor in outputs.items()
        }

    def _explained(self, error: RuntimeError, rows: int) -> Exception:
        """Return what to raise for ``error``; nothing reads the host's buffers any more then."""
        fault = fault_of(error)
        if fault is Fault.LOST or not self._settles() or not self._usable(fault):
            return DeviceLostError(str(error))
        if fault is Fault.MEMORY:
            self._gpu.release()
            self._limit.shrink(rows)
            return out_of_memory(rows)
        return error

    def _settles(self) -> bool:
        """Wait for what was enqueued before the error; return whether that went well."""
        try:
            self._stream.wait()
        except RuntimeError as error:
            return fault_of(error) is Fault.MEMORY
        return True

    def _usable(self, fault: Fault) -> bool:
        return fault is not Fault.DEVICE or self._gpu.answers()
