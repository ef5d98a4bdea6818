"""Private parts of Pyro behave as `probattn.pyro_compat` documents; a new Pyro that changes them fails here."""

from contextlib import suppress

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample
from pyro.poutine.messenger import Messenger
from torch import nn
from torch.distributions import constraints, transform_to

from probattn import pyro_compat


class Leaf(PyroModule):
    """One attribute of each kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.scale = PyroParam(torch.tensor(2.0), constraint=constraints.positive)
        self.shift = PyroSample(dist.Normal(0.0, 1.0))
        self.linear = nn.Linear(2, 1)

    def forward(self):
        return self.weight, self.scale, self.shift, self.linear.weight


def root():
    tree = PyroModule()
    tree.inner = PyroModule[nn.Sequential](Leaf())
    return tree


def test_the_stack_holds_active_handlers_outermost_first():
    assert list(pyro_compat.HANDLER_STACK) == []
    with Messenger() as outer, Messenger() as inner:
        assert list(pyro_compat.HANDLER_STACK) == [outer, inner]
        assert pyro.poutine.runtime.am_i_wrapped()
    assert list(pyro_compat.HANDLER_STACK) == []


def test_hidden_handlers_see_no_site_and_return_in_their_places():
    with poutine.trace() as outer, poutine.block(hide=[]) as middle, poutine.trace() as inner:
        with suppress(KeyError), pyro_compat.hidden_handlers(lambda handler: handler is outer):
            assert list(pyro_compat.HANDLER_STACK) == [middle, inner]
            pyro.sample("hidden", dist.Normal(0.0, 1.0))
            raise KeyError
        assert list(pyro_compat.HANDLER_STACK) == [outer, middle, inner]
        pyro.sample("seen", dist.Normal(0.0, 1.0))
    assert list(outer.trace.nodes) == ["seen"]
    assert list(inner.trace.nodes) == ["hidden", "seen"]


def test_plates_subsample_at_a_site_of_their_own():
    def model():
        with pyro.plate("data", 6, subsample_size=2):
            pyro.sample("x", dist.Normal(0.0, 1.0))

    nodes = poutine.trace(model).get_trace().nodes
    assert pyro_compat.is_subsample(nodes["data"]["fn"])
    assert not pyro_compat.is_subsample(nodes["x"]["fn"])


def test_a_trace_keeps_the_arguments_of_its_program():
    seen = []

    def model(x, *, y):
        seen.append(pyro_compat.trace_arguments(tracer.trace))

    tracer = poutine.trace(model)
    tracer(1, y=2)
    assert seen == [((1,), {"y": 2})]
    with poutine.trace() as empty:
        assert pyro_compat.trace_arguments(empty.trace) == ((), {})


def test_parallel_predictive_names_its_plate():
    names = []

    def model():
        names.extend(getattr(handler, "name", None) for handler in pyro_compat.HANDLER_STACK)
        pyro.sample("x", dist.Normal(0.0, 1.0))

    Predictive(model, num_samples=3, parallel=True)()
    assert pyro_compat.PREDICTIVE_PLATE in names


def test_masked_distributions_return_their_mask():
    mask = torch.tensor([True, False])
    assert pyro_compat.mask_of(dist.Normal(torch.zeros(2), 1.0).mask(mask)) is mask


def test_paths_and_full_names():
    tree = root()
    assert [pyro_compat.module_path(each) for each in (tree, tree.inner, tree.inner[0])] == ["", "inner", "inner.0"]
    assert pyro_compat.module_path(nn.Linear(2, 1)) is None
    with pytest.raises(AssertionError):
        pyro_compat.full_name(tree.inner[0], "u")
    with pyro_compat.naming_scope(tree):
        assert pyro_compat.full_name(tree.inner[0], "u") == "inner.0.u"


def test_names_are_fixed_by_the_first_run_until_renaming_is_allowed():
    network = PyroModule[nn.Sequential](Leaf())
    with pyro_compat.naming_scope(network):
        pass
    outer = PyroModule()
    with pytest.raises(AssertionError, match="executed outside"):
        outer.network = network
    pyro_compat.allow_renaming(network)
    outer.network = network
    assert pyro_compat.module_path(network[0]) == "network.0"


def test_a_module_that_holds_a_pyro_sample_is_recognised():
    assert pyro_compat.has_pyro_samples(Leaf())
    assert not pyro_compat.has_pyro_samples(root())
    assert not pyro_compat.has_pyro_samples(nn.Linear(2, 1))


class Recorded(pyro_compat.AttributeReads, Leaf):
    """Records which method each attribute is read by."""

    def __init__(self):
        self.__dict__["reads"] = []
        super().__init__()

    def _read_parameter(self, name, parameter):
        self.reads.append(("parameter", name))
        return super()._read_parameter(name, parameter)

    def _read_pyro_param(self, name, unconstrained, constraint, event_dim):
        self.reads.append(("pyro_param", name))
        torch.testing.assert_close(transform_to(constraint)(unconstrained), torch.tensor(2.0))
        return super()._read_pyro_param(name, unconstrained, constraint, event_dim)

    def _read_pyro_sample(self, name, prior):
        self.reads.append(("pyro_sample", name))
        return super()._read_pyro_sample(name, prior)

    def _read_module(self, name, child):
        self.reads.append(("module", name))
        return super()._read_module(name, child)


def test_reads_during_a_call_have_the_effects_of_pyro():
    plain, recorded = Leaf(), Recorded()
    recorded.load_state_dict(plain.state_dict())
    nodes = []
    for module in (plain, recorded):
        with pyro.get_param_store().scope():
            torch.manual_seed(0)
            trace = poutine.trace(module).get_trace()
            nodes.append({name: node["type"] for name, node in trace.nodes.items() if not name.startswith("_")})
    assert nodes[0] == nodes[1]
    assert {"weight", "scale", "shift", "linear$$$weight"} <= nodes[0].keys()
    expected = [("parameter", "weight"), ("pyro_param", "scale"), ("pyro_sample", "shift"), ("module", "linear")]
    assert recorded.reads == expected


def test_reads_outside_a_call_have_no_effects():
    recorded = Recorded()
    with poutine.trace() as traced:
        assert recorded.weight is dict(recorded.named_parameters())["weight"]
        assert recorded.scale == torch.tensor(2.0)
        assert isinstance(recorded.linear, nn.Linear)
    assert recorded.reads == []
    assert dict(traced.trace.nodes) == {}
    with pytest.raises(AttributeError, match="missing"):
        _ = recorded.missing


def test_module_local_params_and_their_state():
    assert not pyro_compat.has_module_local_params()
    module = Leaf()
    with pyro.settings.context(module_local_params=True):
        assert pyro_compat.has_module_local_params()
        with pytest.raises(AttributeError) as error:
            module()
        assert pyro_compat.is_param_state_missing(error.value)
        assert not pyro_compat.is_param_state_missing(AttributeError("another"))
        module = Leaf.__new__(Leaf)
        with pyro.settings.context(module_local_params=False):
            module.__init__()
        pyro_compat.add_param_state(module)
        with poutine.trace():
            module()
    assert dict(pyro.get_param_store().items()) == {}


def test_the_store_holds_unconstrained_tensors_that_can_be_replaced():
    scale = pyro.param("scale", torch.tensor(2.0), constraint=constraints.positive)
    stored = pyro_compat.stored_params()
    assert stored["scale"] is scale.unconstrained()
    parameter = nn.Parameter(torch.tensor(3.0).log())
    pyro_compat.store_param("scale", parameter)
    torch.testing.assert_close(pyro.param("scale"), torch.tensor(3.0))
    assert pyro.get_param_store().param_name(parameter) == "scale"


class Pairs(pyro_compat.TracePairs, Trace_ELBO):
    """Counts the pairs of traces."""

    count = 0

    def trace_pair(self, model, guide, args, kwargs):
        self.count += 1
        return super().trace_pair(model, guide, args, kwargs)


def test_an_elbo_runs_model_and_guide_once_a_particle():
    def model(x):
        pyro.sample("x", dist.Normal(0.0, 1.0), obs=pyro.sample("z", dist.Normal(x, 1.0)))

    def guide(x):
        pyro.sample("z", dist.Normal(x, 2.0))

    elbo, x = Pairs(num_particles=3), torch.tensor(1.0, requires_grad=True)
    losses = []
    for model_trace, guide_trace in elbo.trace_pairs(model, guide, (x,), {}):
        assert model_trace.nodes["z"]["value"] is guide_trace.nodes["z"]["value"]
        losses.append(elbo.surrogate_loss(model_trace, guide_trace))
        expected = guide_trace.log_prob_sum() - model_trace.log_prob_sum()
        torch.testing.assert_close(losses[-1], expected)
    assert elbo.count == 3
    sum(losses).backward()
    assert elbo.differentiable_loss(model, guide, x).isfinite()
    assert elbo.count == 6


@pytest.mark.parametrize("constraint", [constraints.positive, constraints.greater_than(1.0), constraints.unit_interval])
def test_a_constrained_value_is_that_of_pytorch_bit_for_bit(constraint):
    unconstrained = torch.randn(100)
    expected = transform_to(constraint)(unconstrained)
    assert torch.equal(pyro_compat.constrained(unconstrained, constraint), expected)
