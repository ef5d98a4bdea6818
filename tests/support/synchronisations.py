"""Copies for which the host would wait for a GPU, recorded on a CPU."""

from torch.utils._python_dispatch import TorchDispatchMode


class BlockingCopies(TorchDispatchMode):
    """Record copies to another device, such as "meta", for which the host would wait."""

    def __init__(self):
        super().__init__()
        self.seen, self.copies = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.name().startswith("aten::_to_copy") and out.device != args[0].device:
            self.copies += 1
            if not (kwargs or {}).get("non_blocking"):
                self.seen.append(tuple(out.shape))
        assert not (func.name().startswith("aten::copy_") and len({each.device for each in args[:2]}) > 1)
        return out
