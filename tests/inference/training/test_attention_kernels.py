"""Training does not use cuDNN's attention, and leaves PyTorch's setting as it was."""

import pytest
import torch

from probattn import SoftmaxAttention, guides
from probattn.inference import TrainOptions, fit
from probattn.models import Classifier, ViT


@pytest.mark.parametrize("before", [True, False])
def test_cudnn_attention_is_off_during_training_alone(before, monkeypatch):
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(depth=1, attention=SoftmaxAttention, **sizes), num_data=3)
    seen, forward = [], Classifier.forward
    monkeypatch.setattr(
        Classifier, "forward", lambda *args: (seen.append(torch.backends.cuda.cudnn_sdp_enabled()), forward(*args))[1]
    )
    batches, options = [(torch.randn(3, 1, 4, 4), torch.arange(3))], TrainOptions(epochs=1)
    default = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before)
    try:
        fit(model, guides.for_model(model), batches, options=options, progress=False)
        assert torch.backends.cuda.cudnn_sdp_enabled() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(default)
    assert seen[-1] is False
