"""CUDA graphs on a CPU: what is captured is recorded operation by operation, and computed again on the same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probattn.inference.training import cuda_graph


def tensors(*values):
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Stands in for ``torch.cuda.CUDAGraph``: the operations of one run, which leaves nothing behind itself."""

    def __init__(self):
        super().__init__()
        self.operations, self.made, self.before = [], set(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for each in tensors(args, kwargs):
                if storage(each) not in self.made and id(each) not in self.before:
                    self.before[id(each)] = each, each.detach().clone()
        out = func(*args, **kwargs)
        given = {storage(each) for each in tensors(args, kwargs)}
        self.made |= {storage(each) for each in tensors(out)} - given
        self.operations.append((func, args, kwargs, out))
        return out

    def restore(self):
        with torch.no_grad():
            for tensor, value in self.before.values():
                tensor.copy_(value)
        self.before = {}

    def replay(self):
        with torch.no_grad():
            for func, args, kwargs, out in self.operations:
                again = func(*args, **kwargs)
                given = {storage(each) for each in tensors(args, kwargs)}
                for old, new in zip(tensors(out), tensors(again), strict=True):
                    if old is not new and storage(new) not in given:
                        old.copy_(new)


class Capture:
    """Stands in for ``torch.cuda.graph``."""

    def __init__(self, tape, *, stream, pool=None):
        self.tape = tape

    def __enter__(self):
        self.random = torch.get_rng_state()
        self.tape.__enter__()

    def __exit__(self, *error):
        self.tape.__exit__(*error)
        self.tape.restore()
        torch.set_rng_state(self.random)


class Stream:
    def wait_stream(self, other):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def replay_on_cpu(monkeypatch, *, caches=None):
    """Capture and replay the steps of ``fit(capture=True)`` on a CPU, by tapes; a list ``caches`` receives theirs."""
    fakes = {"Stream": Stream, "current_stream": Stream, "stream": lambda each: each, "graph_pool_handle": lambda: None}
    for name, fake in (fakes | {"CUDAGraph": Tape, "graph": Capture}).items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def make(device, *, like=None):
        cache = cuda_graph.GraphCache(stream=None if like is None else like.stream)
        if caches is not None:
            caches.append(cache)
        return cache

    monkeypatch.setattr(cuda_graph, "make_graph_cache", make)
