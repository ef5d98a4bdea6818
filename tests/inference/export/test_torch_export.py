"""Exported programs against the networks that they were exported from."""

import pytest
import torch
from export_cases import KEP, LAYERS
from torch import nn
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    guides,
)
from probattn.functional import jitter
from probattn.functional.jitter import JITTERS, JitterWarning
from probattn.inference import export, mean_network, predictor_network
from probattn.models import Supervised, TextTagger, TextTransformer, replace_attention
from probattn.models.embeddings import SpelledEmbedding
from probattn.models.likelihoods import Categorical, TokenCategorical

F64 = torch.float64
RANDOM = ("sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp")
VARYING = {name: layer for name, layer in LAYERS.items() if name != "kep-svgp-concat"}


def layers(*quick, among=LAYERS):
    """Parametrise by layer; all but the quick ones are slow."""
    return pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in among]
    )


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@layers("kep-svgp-concat", "sparse-cgp")
def test_a_program_of_draws_gives_what_its_network_gives_at_any_batch_size(
    images, reloaded, seeded, vit, name, tmp_path
):
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
def test_a_program_of_the_mean_computes_nothing_else(images, predicted, reloaded, same_as, vit, name, tmp_path):
    model, guide = vit(LAYERS[name])
    network = mean_network(model, guide)
    program = export(tmp_path / "a.pt2", network, images(1))
    x = images(6)
    same_as(predicted(model, guide, x, None), reloaded(tmp_path / "a.pt2")(x), rtol=0, atol=1e-10)
    found = targets(program)
    assert not [target for target in found if "normal" in target or "rand" in target or "multinomial" in target]
    factors = {"kep-svgp": 0, "sgpa-joint": 1, "cgp": 1}  # of K_ββ and of P; that of the draws is left out
    assert sum("cholesky" in target for target in found) == 2 * factors[name]


@layers("cgp", among=VARYING)
def test_a_program_of_texts_takes_any_length(reloaded, seeded, text, texts, name, tmp_path):
    model, guide = text(VARYING[name])
    network = predictor_network(model, guide, num_samples=3)
    program = export(tmp_path / "a.pt2", network, *texts(3, 5))
    assert any("normal" in target for target in targets(program)) == (name in RANDOM)
    program = reloaded(tmp_path / "a.pt2")
    for shape in ((1, 1), (3, 3), (2, 12), (5, 4)):
        given = texts(*shape)
        expected, found = seeded(network, *given), seeded(program, *given)
        for key, value in expected.items():
            assert_close(found[key], value, rtol=0, atol=1e-10)
    with pytest.raises((AssertionError, RuntimeError), match="12"):
        program(*texts(2, 13))


def test_a_program_of_tokens_and_of_spelled_words(reloaded, text, texts, tmp_path):
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


def test_a_fixed_number_of_tokens_stays_fixed(reloaded, text, texts, tmp_path):
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


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [None, 3])
def test_a_converted_network_of_another_library(network_of, reloaded, seeded, texts, num_samples, tmp_path):
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


@pytest.mark.slow
def test_draws_of_all_examples_are_kept_and_those_of_one_are_drawn_anew(images, reloaded, seeded, vit, tmp_path):
    x = images(3)
    for layer, anew in ((KEP, False), (CGPAttention.partial(noise=0.3), True)):
        export(tmp_path / "a.pt2", predictor_network(*vit(layer), num_samples=2), x)
        program = reloaded(tmp_path / "a.pt2")
        first, second = (program(x)["probs"] for _ in range(2))
        assert torch.equal(first, second) is not anew
        assert torch.equal(seeded(program, x)["probs"], seeded(program, x)["probs"])


def test_what_the_network_would_refuse_is_nan_in_its_row_alone(reloaded, text, tmp_path):
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


def test_a_program_factorises_as_far_as_a_middle_jitter_goes(reloaded, tmp_path):
    class Factor(nn.Module):
        def forward(self, x):
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


def test_a_module_around_a_network_is_exported_with_it(predicted, reloaded, same_as, vit, tmp_path):
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
