"""Networks on their own and exported programs, against predict with the same draws, and where torch alone is."""

import copy
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.functional import errors, jitter
from probattn.functional.errors import NumericalError
from probattn.functional.jitter import JITTERS, JitterWarning
from probattn.handlers import at_mean
from probattn.inference import export, mean_network, predict, predictor_network
from probattn.models import Supervised, TextTagger, TextTransformer, ViT, replace_attention
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical

F64 = torch.float64
KEP = KEPSVGPAttention.partial(rank=2, multiple=2)
LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEP,
    "kep-svgp-concat": KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4),
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-joint": SGPAttention.partial(inducing=3, draws="joint"),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention.partial(noise=0.3),
    "sparse-cgp": SparseCGPAttention.partial(inducing=2, noise=0.3),
}
RANDOM = ("sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp")
VARYING = {name: layer for name, layer in LAYERS.items() if name != "kep-svgp-concat"}
layers = pytest.mark.parametrize("name", LAYERS)
spread = pytest.mark.parametrize("num_samples", [None, 3])


def images(number=5):
    return torch.randn(number, 1, 4, 4, dtype=F64)


def vit(layer=KEP, *, likelihood=None, depth=1, **options):
    """A model of images whose outputs depend strongly on attention, and its guide."""
    network = ViT(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=8,
        depth=depth,
        heads=2,
        mlp_dim=8,
        attention=layer,
        **options,
    )
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    model.network.initialise_inducing(images())
    return model, guides.for_model(model)


def texts(rows=4, tokens=6, *, spelling=0):
    """Ids and a mask whose first row is full."""
    x = torch.randint(1, 9, (rows, tokens, *([1 + spelling] if spelling else [])))
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1))
    mask[0] = True
    return x, mask


def text(layer=KEP, kind=TextTransformer, likelihood=None, embedding=None):
    network = kind(
        embedding or WordEmbedding(9, 8), max_length=12, classes=3, dim=8, depth=1, heads=2, mlp_dim=8, attention=layer
    )
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    return model, guides.for_model(model)


def network_of(model, guide, num_samples, *inputs):
    if num_samples is None:
        return mean_network(model, guide, *inputs)
    return predictor_network(model, guide, *inputs, num_samples=num_samples)


def predicted(model, guide, data, num_samples):
    if num_samples is not None:
        return predict(model, guide, data, num_samples=num_samples)
    with at_mean():
        return predict(model, guide, data, num_samples=1)


def same_as(prediction, found, **tolerance):
    assert found
    for name, value in found.items():
        assert_close(value, getattr(prediction, name), **tolerance)


def seeded(call, *args):
    torch.manual_seed(7)
    return call(*args)


def reloaded(path):
    return torch.export.load(path).module()


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


# Networks, in this process


@layers
@spread
def test_a_network_predicts_what_predict_does_with_the_same_draws(name, num_samples):
    model, guide = vit(LAYERS[name], depth=2)
    x = images()
    expected = seeded(predicted, model, guide, x, num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x))
    same_as(expected, found, rtol=0, atol=1e-12)
    more = {"entropy", "expected_entropy", "mutual_information"} if num_samples else set()
    assert set(found) == {"probs", "energy"} | more
    if num_samples and name not in ("softmax", "kernel"):
        assert (found["mutual_information"] > 1e-6).any()


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
@spread
def test_other_labels_have_mean_and_variance(likelihood, num_samples):
    model, guide = vit(likelihood=likelihood())
    x = images()
    expected = seeded(predicted, model, guide, x, num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x))
    assert set(found) == {"mean", "variance"}
    same_as(expected, found)
    if likelihood is Gaussian:  # noise, and what the draws add to it
        assert (found["variance"] > 1).all() if num_samples else (found["variance"] == 1).all()


@spread
def test_a_class_of_every_token_is_0_at_padding(num_samples):
    model, guide = text(kind=TextTagger, likelihood=TokenCategorical())
    x, mask = texts()
    expected = seeded(predicted, model, guide, [(x, None, mask)], num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x, mask))
    same_as(expected, found)
    assert (found["probs"].sum(-1)[mask] > 0.99).all()
    assert (found["probs"][~mask] == 0).all()


@pytest.mark.parametrize("family", ["diagonal", "lowrank", "delta", AutoNormal, AutoMultivariateNormal, None])
@spread
def test_any_guide(family, num_samples):
    model, _ = vit()
    x = images()
    if isinstance(family, type):
        guide = family(guides.global_part(model))
        guides.materialise(guide, (x, torch.zeros(len(x))))
    else:
        guide = None if family is None else guides.for_model(model, family)
    expected = seeded(predicted, model, guide, x, num_samples)
    same_as(expected, seeded(lambda: network_of(model, guide, num_samples)(x)))


class Own(PyroModule):
    """A guide of a user that asks for the inputs, and draws a site of each example where ``local``."""

    def __init__(self, site, prior, local=False):
        super().__init__()
        self.site, self.prior, self.local = site, prior, local

    def forward(self, x, y=None, mask=None):
        pyro.sample(self.site, self.prior, infer={"local": True} if self.local else {})


def test_a_guide_that_asks_for_inputs_gets_them():
    model, _ = vit()
    x = images()
    guide = Own(*next(guides.latent_sites(model)))
    with pytest.raises(TypeError, match="'x'"):
        mean_network(model, guide)
    same_as(predicted(model, guide, x, None), mean_network(model, guide, x)(x))


def test_what_a_network_cannot_fix_is_refused():
    model, guide = vit()
    x = images()
    site, prior = next(guides.latent_sites(model))
    with pytest.raises(ValueError, match=f"site {site} is neither a global site of the guide nor"):
        mean_network(model, Own(site, prior, local=True), x)(x)
    with pytest.raises(ValueError, match="built for another model"):
        mean_network(copy.deepcopy(model), guide)
    with pytest.raises(ValueError, match="materialise"):
        mean_network(model, AutoNormal(guides.global_part(model)))
    with pytest.raises(ValueError, match="positive number"):
        predictor_network(model, guide, num_samples=0)


@spread
def test_a_network_is_a_copy_that_stays_as_it_is(num_samples):
    model, guide = vit(dropout=0.5)
    x = images()
    network = network_of(model, guide, num_samples).train()
    assert model.training
    assert all(parameter.requires_grad for parameter in [*model.parameters(), *guide.parameters()])
    assert not any(parameter.requires_grad for parameter in network.parameters())
    before = network(x)
    with torch.no_grad():
        for parameter in [*model.parameters(), *guide.parameters()]:
            parameter += 1
    same = network(x)
    assert all(torch.equal(before[name], same[name]) for name in before)
    wrapped = nn.Sequential(network).train()
    assert torch.equal(wrapped(x)["probs"], before["probs"])
    assert torch.equal(copy.deepcopy(network)(x)["probs"], before["probs"])


def test_a_network_raises_what_predict_does():
    model, guide = text(SGPAttention.partial(inducing=3))
    x, mask = texts()
    with pytest.raises(ValueError, match=r"without any token, rows \[2\]"):
        mean_network(model, guide)(x, mask.index_fill(0, torch.tensor(2), False))
    model.network.embedding.weight.data[3] = torch.nan
    with pytest.raises(NumericalError, match="SGPAttention 'network.blocks.0.attention'"):
        mean_network(model, guide)(x.fill_(3), mask)


# Programs


@layers
def test_a_program_of_draws_gives_what_its_network_gives_at_any_batch_size(name, tmp_path):
    model, guide = vit(LAYERS[name])
    network = predictor_network(model, guide, num_samples=3)
    program = export(tmp_path / "a.pt2", network, images(1))
    again = reloaded(tmp_path / "a.pt2")
    for size in (1, 2, 3, 7):
        x = images(size)
        expected, found = seeded(network, x), seeded(again, x)
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_close(found[key], value, rtol=0, atol=1e-10)
    assert any("normal" in target for target in targets(program)) == (name in RANDOM)


@pytest.mark.parametrize("name", ["kep-svgp", "sgpa-joint", "cgp"])
def test_a_program_of_the_mean_computes_nothing_else(name, tmp_path):
    model, guide = vit(LAYERS[name])
    network = mean_network(model, guide)
    program = export(tmp_path / "a.pt2", network, images(1))
    x = images(6)
    same_as(predicted(model, guide, x, None), reloaded(tmp_path / "a.pt2")(x), rtol=0, atol=1e-10)
    found = targets(program)
    assert not [target for target in found if "normal" in target or "rand" in target or "multinomial" in target]
    factors = {"kep-svgp": 0, "sgpa-joint": 1, "cgp": 1}  # of K_ββ and of P; that of the draws is left out
    assert sum("cholesky" in target for target in found) == 2 * factors[name]


@pytest.mark.parametrize("name", VARYING)
def test_a_program_of_texts_takes_any_length(name, tmp_path):
    model, guide = text(VARYING[name])
    network = predictor_network(model, guide, num_samples=3)
    export(tmp_path / "a.pt2", network, *texts(3, 5))
    program = reloaded(tmp_path / "a.pt2")
    for shape in ((1, 1), (3, 3), (2, 12), (5, 4)):
        given = texts(*shape)
        expected, found = seeded(network, *given), seeded(program, *given)
        for key, value in expected.items():
            assert_close(found[key], value, rtol=0, atol=1e-10)
    with pytest.raises((AssertionError, RuntimeError), match="12"):
        program(*texts(2, 13))


def test_a_program_of_tokens_and_of_spelled_words(tmp_path):
    for kind, likelihood, spelling in ((TextTagger, TokenCategorical(), 0), (TextTransformer, Categorical(), 4)):
        embedding = SpelledEmbedding(9, 9, 8) if spelling else None
        model, guide = text(kind=kind, likelihood=likelihood, embedding=embedding)
        network = predictor_network(model, guide, num_samples=3)
        export(tmp_path / "a.pt2", network, *texts(spelling=spelling))
        program = reloaded(tmp_path / "a.pt2")
        for shape in ((1, 1), (3, 12), (4, 3)):
            given = texts(*shape, spelling=spelling)
            for key, value in network(*given).items():
                assert_close(program(*given)[key], value, rtol=0, atol=1e-10)


def test_a_fixed_number_of_tokens_stays_fixed(tmp_path):
    model, guide = text(KEPSVGPAttention.partial(rank=2, merge="concat", tokens=5))
    network = mean_network(model, guide)
    export(tmp_path / "a.pt2", network, *texts(2, 5))
    program, given = reloaded(tmp_path / "a.pt2"), texts(4, 5)
    assert_close(program(*given)["probs"], network(*given)["probs"], rtol=0, atol=1e-10)
    with pytest.raises((AssertionError, RuntimeError)):
        program(*texts(4, 6))


class Tagger(nn.Module):
    """A network of another's: its batch second inside."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False)

    def forward(self, x, mask=None):
        padding = None if mask is None else ~mask
        return self.head(self.encoder(self.embed(x).transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1))


@spread
def test_a_converted_network_of_another_library(num_samples, tmp_path):
    converted = replace_attention(Tagger(), attention=CGPAttention.partial(noise=0.3))
    model = Supervised(converted, TokenCategorical(), num_data=10).double()
    guide = guides.for_model(model)
    network = network_of(model, guide, num_samples)
    export(tmp_path / "a.pt2", network, *texts())
    program = reloaded(tmp_path / "a.pt2")
    for shape in ((1, 1), (3, 9)):
        given = texts(*shape)
        expected, found = seeded(network, *given), seeded(program, *given)
        for key, value in expected.items():
            assert_close(found[key], value, rtol=0, atol=1e-10)


def test_draws_of_all_examples_are_kept_and_those_of_one_are_drawn_anew(tmp_path):
    x = images(3)
    for layer, anew in ((KEP, False), (CGPAttention.partial(noise=0.3), True)):
        export(tmp_path / "a.pt2", predictor_network(*vit(layer), num_samples=2), x)
        program = reloaded(tmp_path / "a.pt2")
        first, second = (program(x)["probs"] for _ in range(2))
        assert torch.equal(first, second) is not anew
        assert torch.equal(seeded(program, x)["probs"], seeded(program, x)["probs"])


def test_what_the_network_would_refuse_is_nan_in_its_row_alone(tmp_path):
    model, guide = text(CGPAttention.partial(noise=0.3), embedding=nn.Linear(2, 8))
    network = mean_network(model, guide)
    x, mask = torch.randn(4, 3, 2, dtype=F64), torch.ones(4, 3, dtype=torch.bool)
    export(tmp_path / "a.pt2", network, x, mask)
    program = reloaded(tmp_path / "a.pt2")
    expected = network(x, mask)["probs"]
    bad, empty = x.clone(), mask.clone()
    bad[1, 0, 0], empty[2] = torch.nan, False
    found = program(bad, empty)["probs"]
    assert found.isnan().all(-1).tolist() == [False, True, True, False]
    assert_close(found[[0, 3]], expected[[0, 3]], rtol=0, atol=1e-12)


def test_a_program_factorises_as_far_as_a_middle_jitter_goes(tmp_path):
    class Factor(nn.Module):
        def forward(self, x):
            with errors.deferred():
                return {"tril": jitter.cholesky(x, "x")}

    root = torch.randn(3, 3, dtype=F64)
    good, middle = root @ root.T, JITTERS[F64][2]
    rank_one = torch.outer(root[0], root[0]) - 1e-15 * torch.eye(3, dtype=F64)
    x = torch.stack([good, rank_one, -good, good.clone().fill_(torch.nan)])
    export(tmp_path / "a.pt2", Factor(), x)
    tril = reloaded(tmp_path / "a.pt2")(x)["tril"]
    assert torch.equal(tril[0], torch.linalg.cholesky(good))
    moved = rank_one + middle * rank_one.diagonal().mean() * torch.eye(3, dtype=F64)
    assert_close(tril[1], torch.linalg.cholesky(moved), rtol=0, atol=1e-12)
    assert tril[2:].isnan().all()
    with pytest.warns(JitterWarning):
        jitter.cholesky(rank_one, "x")


# Files


ALONE = """
import json, sys
sys.modules |= {"probattn": None, "pyro": None}
import torch
words = {"about.json": ""}
program = torch.export.load(sys.argv[1], extra_files=words)
given = torch.load(sys.argv[2])
found = program.module()(*given)
torch.save(found, sys.argv[3])
print(json.dumps(words))
"""


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_a_program_runs_where_torch_alone_is(kind, tmp_path):
    model, guide = vit() if kind == "images" else text()
    model.float(), guide.float()
    network = predictor_network(model, guide, num_samples=4)
    few, given = ((images(2).float(),), (images(9).float(),)) if kind == "images" else (texts(2, 3), texts(5, 11))
    export(tmp_path / "a.pt2", network, *few, files={"about.json": "a text, ✓"})
    torch.save(given, tmp_path / "given.pt")
    paths = [str(tmp_path / name) for name in ("a.pt2", "given.pt", "found.pt")]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"about.json": "a text, ✓"}
    found = torch.load(tmp_path / "found.pt")
    for key, value in network(*given).items():
        assert_close(found[key], value, rtol=0, atol=1e-6)


def test_a_file_holds_neither_the_example_nor_paths_of_this_machine(tmp_path):
    export(tmp_path / "a.pt2", mean_network(*vit()), images(2))
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    roots = [str(Path(module.__file__).parent).encode() for module in (torch, jitter, sys.modules[__name__])]
    assert not [name for name, data in content.items() if any(root in data for root in roots)]
    (x,), _ = torch.export.load(tmp_path / "a.pt2").example_inputs
    assert (x == 1).all()


def test_a_program_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.pt2"
    network = mean_network(*vit(SoftmaxAttention))
    export(path, network, images())
    before = path.read_bytes()

    def fail(program, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            export(path, network, images())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]
    with pytest.raises(ValueError, match=r"files that end in \.pt2"):
        export(tmp_path / "a.onnx", network, images())


def test_a_module_around_a_network_is_exported_with_it(tmp_path):
    class Raw(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            return self.network(x.double() / 255)

    model, guide = vit()
    pixels = torch.randint(256, (5, 1, 4, 4), dtype=torch.uint8)
    export(tmp_path / "a.pt2", Raw(mean_network(model, guide)), pixels[:1])
    expected = predicted(model, guide, pixels.double() / 255, None)
    same_as(expected, reloaded(tmp_path / "a.pt2")(pixels), rtol=0, atol=1e-10)
