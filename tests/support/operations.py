"""Operations of PyTorch that a block of code runs and that write a tensor."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operations(TorchDispatchMode):
    """Record the operations that write a tensor; views cost nothing."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {self.storage(each) for each in tree_leaves((args, kwargs or {})) if isinstance(each, torch.Tensor)}
        made = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        if func._schema.is_mutable or any(self.storage(each) not in given for each in made):
            self.names.append(func.name())
        return out

    @staticmethod
    def storage(tensor):
        return tensor.untyped_storage()._cdata
