"""This process among those that train together under torchrun."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


class World:
    """This process among those that torchrun started; alone without it."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        cuda = torch.cuda.is_available()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(f"cuda:{local}" if cuda else "cpu")
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo")

    def share(self, module: nn.Module) -> None:
        """Every process begins with the parameters of the first."""
        if self.size == 1:
            return
        for one in module.parameters():
            dist.broadcast(one.detach(), 0)

    def average(self, module: nn.Module) -> None:
        """Average the gradients of all processes."""
        if self.size == 1:
            return
        for one in module.parameters():
            if one.grad is not None:
                dist.all_reduce(one.grad)
                one.grad /= self.size

    def told(self, decision: bool) -> bool:
        """What the first process decided: their clocks differ, and all must stop at one step."""
        if self.size == 1:
            return decision
        shared = torch.tensor(int(decision), device=self.device)
        dist.broadcast(shared, 0)
        return bool(shared)

    def gathered(self, numbers: Sequence[int]) -> list[list[int]]:
        """What every process has here, by rank."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, device=self.device)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine)
        return [one.tolist() for one in found]

    def total(self, number: int) -> int:
        if self.size == 1:
            return number
        summed = torch.tensor(number, device=self.device)
        dist.all_reduce(summed)
        return int(summed)
