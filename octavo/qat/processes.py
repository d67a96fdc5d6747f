"""One process or several (`torchrun`), on CPUs or GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from octavo.errors import ParamsError
from octavo.runtime.host import memory_limit

__all__ = ["Processes", "processes"]


@dataclass(frozen=True)
class Processes:
    """One process among those that train together.

    Attributes:
        rank: its number; 0 writes.
        count: how many there are.
        device: what it computes on.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def memory(self) -> int:
        """Bytes that this process may count on: the GPU's, or its share of the machine's (or of the container's)."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return memory_limit() // self.count

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            distributed.barrier()

    def same(self, value: object) -> object:
        """The value that process 0 has."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the group that `torchrun` started, gloo on CPUs and NCCL on GPUs; alone without it.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`.

    Raises:
        ParamsError: there is no GPU, or fewer than processes.
    """
    count, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if cuda and not torch.cuda.is_available():
        raise ParamsError("`qat.device: cuda`, and torch sees no GPU", "set `qat.device: auto`, or check the driver (nvidia-smi)")
    if cuda and local >= torch.cuda.device_count():
        raise ParamsError(
            f"process {local} of torchrun has no GPU of its own: there are {torch.cuda.device_count()}",
            "start as many processes as there are GPUs (`torchrun --nproc-per-node`)",
        )
    where = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(where)
    if count == 1:
        yield Processes(0, 1, where)
        return
    distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        yield Processes(distributed.get_rank(), count, where)
    finally:
        distributed.destroy_process_group()
