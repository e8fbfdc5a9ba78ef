"""A Lightning Trainer on the simulated accelerator, and what happens between two steps of a run."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from simulated import Counts, Device

import bdl


class Simulated(Accelerator):
    """The accelerator of `simulated.Device`."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def teardown(self) -> None:
        pass

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [Device.present().device]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "simulated"


def settings() -> dict[str, Any]:
    """Arguments of a Trainer on the simulated device."""
    return {"accelerator": Simulated(), "strategy": SingleDeviceStrategy(device=Device.present().device), "devices": 1}


class Window(bdl.callbacks.StepCallback):
    """Counts what happens on the device in the steps after `first`, to `last`, all of one block."""

    def __init__(self, first: int, last: int):
        self.first, self.last, self.seen = first, last, Counts()

    @property
    def kernels(self) -> float:
        """Kernels a step, outside of graphs."""
        return self.seen.kernels.total() / (self.last - self.first)

    @property
    def launches(self) -> float:
        """Graphs a step."""
        return self.seen.launches / (self.last - self.first)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.sampler = pl_module.sampler

    def must_see(self, step: int) -> bool:
        return step in (3, 4, self.last)  # a graph of each kind of step is recorded by then

    def before_step(self) -> None:
        if self.sampler.steps == self.first:
            self._counting = Device.present().counted()
            self.seen = self._counting.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        if self.sampler.steps == self.last:
            self._counting.__exit__(None, None, None)
