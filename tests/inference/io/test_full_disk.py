"""On a full disk every writer fails; no part of a file stays, and old ones do."""

import pytest
import torch
from full_disk import check_refused
from torch import nn

from probattn.inference import export, save, save_safetensors
from probattn.inference.io.files import write_bytes


class Network(nn.Module):
    """Network of a megabyte, which no buffer holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.zeros(2**18))

    def forward(self, x):
        return {"probs": x + self.large[:2]}


WRITERS = {
    "a.pt": lambda path: save(path, Network()),
    "a.safetensors": lambda path: save_safetensors(path, Network()),
    "a.txt": lambda path: write_bytes(path, 200 * b"text"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files(tmp_path, name):
    assert check_refused(lambda: WRITERS[name](tmp_path / name), tmp_path) == {name}


def test_programs(tmp_path):
    """PyTorch's writer to a file ended the process with SIGABRT."""
    sizes = (0, 1000, 2**20)
    assert check_refused(lambda: export(tmp_path / "a.pt2", Network(), torch.ones(3, 2)), tmp_path, sizes=sizes)
