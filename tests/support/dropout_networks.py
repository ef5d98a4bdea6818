"""Networks with dropout, for tests of MC dropout."""

import torch
from small_vit import small_vit
from torch import nn

from probattn import SoftmaxAttention, guides
from probattn.models import Classifier, last

F64 = torch.float64


def vit(attention=SoftmaxAttention, *, dropout=0.3, depth=2, number=1):
    attention = last(number, attention, of=depth)
    network = small_vit(attention, depth=depth, dropout=dropout, dim=4, mlp_dim=6)
    model = Classifier(network, num_data=9).double()
    return model, guides.for_model(model)


def chain(*layers):
    """A classifier of vectors, with names as in a sequence."""
    model = Classifier(nn.Sequential(*layers), num_data=9).double()
    return model, guides.for_model(model)


def images(batch=4):
    return torch.randn(batch, 1, 4, 4, dtype=F64)


def inputs(module):
    """A list to which the module's input at each call is added."""
    log = []
    module.register_forward_pre_hook(lambda module, args: log.append(args[0].detach().clone()))
    return log


def outputs(module):
    """A list to which the module's output at each call is added."""
    log = []
    module.register_forward_hook(lambda module, args, output: log.append(output.detach().clone()))
    return log
