"""Exported programs against the networks that they were exported from, with torch alone, at any
batch size."""

import json
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from export_cases import (
    LAYERS,
    images,
    network_of,
    seeded,
    text,
    texts,
    vit,
)
from float64 import F64, eye64, randn64
from third_party_networks import modelled, third_party
from torch import nn
from torch.testing import assert_close

from probattn import CGPAttention, guides
from probattn.functional import jitter
from probattn.functional.errors import NumericalError
from probattn.functional.jitter import JITTERS, JitterWarning
from probattn.inference import export, mean_network, predictor_network
from probattn.models import TextTagger
from probattn.models.embeddings import SpelledEmbedding
from probattn.models.likelihoods import TokenCategorical

RANDOM = (
    "kep-svgp-residual",
    "sgpa",
    "sgpa-joint",
    "sgpa-standard",
    "cgp",
    "sparse-cgp",
    "anchored-draw",
    "anchored-dual",
    "rff-gpa-dual",
    "rff-cgp",
    "rff-cgp-sampled",
)


def reloaded(path, network, *example):
    export(path, network, *example)
    return torch.export.load(path).module()


def assert_same(network, program, *arguments):
    expected, outputs = seeded(network, *arguments), seeded(program, *arguments)
    assert list(outputs) == list(expected)
    for key, value in expected.items():
        assert_close(outputs[key], value, rtol=0, atol=1e-10)


def is_random(path):
    graph = torch.export.load(path).graph
    return any(
        word in str(node.target)
        for node in graph.nodes
        for word in ("normal", "rand", "multinomial")
    )


def most_are_slow(*quick):
    """Every layer, most as slow tests."""
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in LAYERS],
    )


@most_are_slow("sparse-cgp")
def test_a_program_gives_what_its_network_gives_at_any_batch_size(name, tmp_path):
    num_samples = None if name == "sgpa-joint" else 3
    network = network_of(*vit(LAYERS[name]), num_samples)
    program = reloaded(tmp_path / "a.pt2", network, images(1))
    for size in (1, 3, 7):
        assert_same(network, program, images(size))
    assert is_random(tmp_path / "a.pt2") == (num_samples is not None and name in RANDOM)


@most_are_slow("sgpa")
def test_a_program_of_texts_takes_any_length_unless_the_layer_fixes_it(name, tmp_path):
    fixed = "concat" in name
    network = predictor_network(*text(LAYERS[name]), num_samples=3)
    program = reloaded(tmp_path / "a.pt2", network, *texts(3, 4 if fixed else 5))
    for shape in ((5, 4), *(() if fixed else ((1, 1), (2, 12)))):
        assert_same(network, program, *texts(*shape))
    with pytest.raises((AssertionError, RuntimeError), match="4" if fixed else "12"):
        program(*texts(2, 13))


def converted():
    model = modelled(third_party("tagger"), attention=CGPAttention.partial(noise=0.3)).double()
    return model, guides.for_model(model)


@pytest.mark.parametrize(
    ("build", "spelling"),
    [
        (lambda: text(kind=TextTagger, likelihood=TokenCategorical()), 0),
        pytest.param(lambda: text(embedding=SpelledEmbedding(9, 9, 8)), 4, marks=pytest.mark.slow),
        pytest.param(converted, 0, marks=pytest.mark.slow),
    ],
)
def test_a_program_of_tokens_of_spelled_words_and_of_a_converted_network(build, spelling, tmp_path):
    network = predictor_network(*build(), num_samples=3)
    program = reloaded(tmp_path / "a.pt2", network, *texts(spelling=spelling))
    for shape in ((1, 1), (3, 12)):
        assert_same(network, program, *texts(*shape, spelling=spelling))


def test_what_the_network_would_refuse_is_nan_in_its_row_alone(tmp_path):
    network = mean_network(*text(CGPAttention.partial(noise=0.3), embedding=nn.Linear(2, 8)))
    x, mask = randn64(4, 3, 2), torch.ones(4, 3, dtype=torch.bool)
    program, expected = reloaded(tmp_path / "a.pt2", network, x, mask), network(x, mask)["probs"]
    x[1, 0, 0], mask[2] = torch.nan, False
    probs = program(x, mask)["probs"]
    assert probs.isnan().all(-1).tolist() == [False, True, True, False]
    assert_close(probs[[0, 3]], expected[[0, 3]], rtol=0, atol=1e-12)


class Factor(nn.Module):
    def forward(self, x):
        return {"tril": jitter.cholesky(x, "x")}


def test_networks_of_other_threads_raise_while_one_is_exported(tmp_path):
    network = mean_network(*text(CGPAttention.partial(noise=0.3), embedding=nn.Linear(2, 8)))
    x, mask = randn64(4, 3, 2), torch.ones(4, 3, dtype=torch.bool)
    reached, left = threading.Event(), threading.Event()

    class Slow(Factor):
        def forward(self, x):
            reached.set()
            assert left.wait(60)
            return super().forward(x)

    with ThreadPoolExecutor(1) as pool:
        exported = pool.submit(export, tmp_path / "a.pt2", Slow(), eye64(3).expand(2, 3, 3))
        assert reached.wait(60)
        try:
            with pytest.raises(NumericalError):
                network(x * torch.nan, mask)
            with pytest.raises(ValueError, match="without any token"):
                network(x, mask & False)
        finally:
            left.set()
        exported.result()
    program = torch.export.load(tmp_path / "a.pt2").module()
    assert program(torch.nan * torch.ones(2, 3, 3, dtype=F64))["tril"].isnan().all()


def test_a_program_factorises_as_far_as_a_middle_jitter_goes(tmp_path):
    root = randn64(3, 3)
    good, middle = root @ root.T, JITTERS[F64][2]
    rank_one = torch.outer(root[0], root[0]) - 1e-15 * eye64(3)
    x = torch.stack([good, rank_one, -good, good.clone().fill_(torch.nan)])
    tril = reloaded(tmp_path / "a.pt2", Factor(), x)(x)["tril"]
    assert torch.equal(tril[0], torch.linalg.cholesky(good))
    moved = rank_one + middle * rank_one.diagonal().mean() * eye64(3)
    assert_close(tril[1], torch.linalg.cholesky(moved), rtol=0, atol=1e-12)
    assert tril[2:].isnan().all()
    with pytest.warns(JitterWarning):
        jitter.cholesky(rank_one, "x")


ALONE = """
import json, sys
sys.modules |= {"probattn": None, "pyro": None}
import torch
files = {"about.json": ""}
program = torch.export.load("a.pt2", extra_files=files)
torch.save(program.module()(*torch.load("inputs.pt")), "outputs.pt")
print(json.dumps(files))
"""


def test_a_program_runs_with_torch_alone_and_holds_neither_the_example_nor_paths_of_this_machine(
    tmp_path,
):
    model, guide = text()
    inputs, network = texts(5, 11), predictor_network(model.float(), guide.float(), num_samples=4)
    export(tmp_path / "a.pt2", network, *texts(2, 3), files={"about.json": "a text, ✓"})
    torch.save(inputs, tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"about.json": "a text, ✓"}
    outputs = torch.load(tmp_path / "outputs.pt")
    for key, value in network(*inputs).items():
        assert_close(outputs[key], value, rtol=0, atol=1e-6)
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    roots = [
        str(Path(module.__file__).parent).encode()
        for module in (torch, jitter, sys.modules[__name__])
    ]
    assert not [name for name, data in content.items() if any(root in data for root in roots)]
    (x, _), _ = torch.export.load(tmp_path / "a.pt2").example_inputs
    assert (x == 1).all()
