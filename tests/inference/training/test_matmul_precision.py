"""Products of float32 matrices: TF32 on a GPU by default, float32 for what is factorised, restored after training."""

import pytest
import torch

from probattn import CGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention, guides
from probattn.functional import dtypes, jitter
from probattn.inference import TrainOptions, fit
from probattn.inference.training.device import device_settings
from probattn.models import Classifier, ViT


@pytest.fixture(autouse=True)
def _restore():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("option", "device", "inside"),
    [(None, "cpu", "highest"), (None, "cuda", "high"), ("medium", "cpu", "medium"), ("highest", "cuda", "highest")],
)
def test_the_precision_holds_inside_and_is_restored(option, device, inside):
    seen = []

    def fail():
        seen.append(torch.get_float32_matmul_precision())
        raise KeyError

    with pytest.raises(KeyError), device_settings(TrainOptions(matmul_precision=option), torch.device(device)):
        fail()
    assert seen == [inside]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_precision_of_each_backend_is_left_alone_unless_the_option_is_given():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert dtypes.matmul_precision() is None
        with device_settings(TrainOptions(), torch.device("cuda")):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def run(layer, monkeypatch, seen, **options):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(depth=1, attention=layer, **sizes), num_data=4)
    factorise = jitter.cholesky
    batches = [(torch.randn(4, 1, 4, 4), torch.arange(4) % 3)]

    def watched(matrix, *args, **kwargs):
        seen.append(torch.get_float32_matmul_precision())
        return factorise(matrix, *args, **kwargs)

    monkeypatch.setattr(jitter, "cholesky", watched)
    options = TrainOptions(epochs=1, num_samples=1, **options)
    fit(model, guides.for_model(model), batches, options=options, progress=False)


@pytest.mark.parametrize(
    "layer", [SGPAttention.partial(inducing=3), CGPAttention, SparseCGPAttention.partial(inducing=3)]
)
def test_what_is_factorised_is_computed_in_float32(layer, monkeypatch):
    seen = []
    run(layer, monkeypatch, seen, matmul_precision="high")
    assert set(seen) == {"highest"}


@pytest.mark.parametrize("layer", [SoftmaxAttention, KernelAttention])
def test_a_run_multiplies_with_the_precision_of_its_options_and_restores_it(layer, monkeypatch):
    seen = []
    forward = Classifier.forward
    monkeypatch.setattr(
        Classifier, "forward", lambda *args: (seen.append(torch.get_float32_matmul_precision()), forward(*args))[1]
    )
    run(layer, monkeypatch, [], matmul_precision="high")
    assert seen[-1] == "high"
    assert torch.get_float32_matmul_precision() == "highest"
