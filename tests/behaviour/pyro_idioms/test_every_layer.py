"""Every layer in a user's program, in a plate of the examples, outside it and without one, under
Pyro's own ELBOs."""

import itertools

import elbos
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from attention_layers import LAYERS
from float64 import randn64
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule

from probattn import guides, local_posteriors, name_layers
from probattn.site_info import info_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::probattn.JitterWarning"),
    pytest.mark.filterwarnings(
        "ignore:Failed to verify mean field"
    ),  # hyperparameters are drawn first
]


class Own(PyroModule):
    """y ~ N(mean of the layer's output, 0.5²), with the layer or the labels in a plate, or
    neither."""

    def __init__(self, layer, where):
        super().__init__()
        self.attention, self.where = layer, where
        name_layers(self)

    def forward(self, x, y=None):
        if self.where == "inside":
            with pyro.plate("data", len(x)):
                return pyro.sample("y", self.law(x), obs=y)
        law = self.law(x)
        if self.where == "event":
            return pyro.sample("y", law.to_event(1), obs=y)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", law, obs=y)

    def law(self, x):
        return dist.Normal(self.attention(x).mean((-2, -1)), 0.5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_says_whether_it_has_local_sites(name):
    layer = LAYERS[name](8, 2)
    nodes = poutine.trace(local_posteriors(layer)).get_trace(torch.randn(3, 4, 8)).nodes.values()
    assert layer.has_local_sites() == any(
        info_of(node).drawn for node in nodes if node["type"] == "sample"
    )


PLACES = ("inside", "outside", "event")
# A global site and a factor, local sites, local sites of a regulariser.
FAST = set(itertools.product(["kep-svgp-residual", "sgpa", "cgp"], PLACES))
FAST |= {("anchored-draw", "inside"), ("rff-gpa-sampled-draw", "outside"), ("rff-cgp", "event")}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in FAST))
        for pair in itertools.product(LAYERS, PLACES)
    ],
)
def test_single_and_vectorised_particles_and_one_pass_have_one_loss(name, where):
    model = Own(LAYERS[name](8, 2), where).double().eval()
    x, y = randn64(3, 4, 8), randn64(3)
    guide, wrapped = guides.for_model(model).double(), local_posteriors(model)
    single = guides.for_model(wrapped).double()
    single.load_state_dict(guide.state_dict())
    many = TraceMeanField_ELBO(
        num_particles=15, vectorize_particles=True, max_plate_nesting=int(where != "event")
    )
    with torch.no_grad():
        first = elbos.losses(TraceMeanField_ELBO, model, guide, x, y, number=40)
        one_pass = elbos.losses(TraceMeanField_ELBO, wrapped, single, x, y, number=40)
        of_library = elbos.losses(elbos.TraceMeanField_ELBO, model, guide, x, y, number=40)
        vectorised = torch.tensor([many.loss(model, guide, x, y) for _ in range(30)])
    elbos.assert_agree(first, one_pass, of_library, vectorised)
