"""The memory of tensors that are alive, as torch's operators make and free them."""

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Memory(TorchDispatchMode):
    """Follows every tensor that an operator touches inside its block. Sizes are in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.alive())
        return result

    def alive(self) -> int:
        self._storages = {k: v for k, v in self._storages.items() if not v[0].expired()}
        return sum(size for _, size in self._storages.values())

    def begin(self) -> int:
        """Measure the peak from here on; returns what is alive."""
        self.peak = self.alive()
        return self.peak
