"""Vision transformers, pools and pretrained encoders against slices, loops and plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.models import PretrainedClassifier, TabularTransformer, ViT

F64 = torch.float64
SIZES = {
    "image_size": 4,
    "patch_size": 2,
    "channels": 3,
    "classes": 5,
    "dim": 8,
    "heads": 2,
    "mlp_dim": 16,
}


def test_the_forward_pass_equals_plain_torch_from_its_state_dict():
    vit = ViT(**SIZES, depth=2).double().eval()
    for parameter in vit.parameters():
        nn.init.normal_(parameter, std=0.3)
    state, images = vit.state_dict(), torch.randn(3, 3, 4, 4, dtype=F64)

    def linear(x, name):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    tokens = [images[:, :, i : i + 2, j : j + 2].flatten(1) for i in (0, 2) for j in (0, 2)]
    x = linear(torch.stack(tokens, dim=1), "embed") + state["positions"]
    for block in ("blocks.0", "blocks.1"):
        q, k, v = linear(
            norm(x, f"{block}.norm_attention"), f"{block}.attention.query_key_value"
        ).chunk(3, dim=-1)
        heads = [
            (q[..., h] @ k[..., h].mT / 2).softmax(-1) @ v[..., h]
            for h in (slice(0, 4), slice(4, 8))
        ]
        x = x + linear(torch.cat(heads, dim=-1), f"{block}.attention.out")
        x = x + linear(
            F.gelu(linear(norm(x, f"{block}.norm_mlp"), f"{block}.mlp.0")), f"{block}.mlp.3"
        )
    assert_close(vit(images), linear(norm(x.mean(1), "norm"), "head"))


def test_a_standardised_network_sees_images_of_mean_0_and_deviation_1():
    vit = ViT(**SIZES, depth=1, standardise=True).double().eval()
    plain = ViT(**SIZES, depth=1).double().eval()
    plain.load_state_dict(vit.state_dict())
    images = torch.rand(3, 3, 4, 4, dtype=F64)
    centred = images - images.mean((1, 2, 3), keepdim=True)
    assert_close(
        vit(images), plain(centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt())
    )


def test_outputs_of_tables_are_in_the_units_of_the_labels():
    network = TabularTransformer(
        [None, 3], outputs=1, dim=8, depth=1, heads=2, mlp_dim=8, units=(10.0, 3.0)
    )
    x = torch.tensor([[0.3, 1.0]])
    assert_close(
        network(x), 10 + 3 * network.head(network.norm(network.blocks(network.tokens(x)).mean(-2)))
    )


MASK = torch.tensor(
    [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool
)


@pytest.mark.parametrize(
    ("kind", "pooling", "last"),
    [("Bert", "mean", 1), ("Bert", "cls", 0), ("Roberta", "mean", None)],
)
@torch.no_grad()
def test_pooled_features_are_those_of_the_encoder_on_each_text_alone(kind, pooling, last):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, max_position_embeddings=9, pad_token_id=1, **sizes
    )
    encoder = getattr(transformers, f"{kind}Model")(config).double().eval()
    x = torch.randint(2, 20, (4, 5))
    ours = PretrainedClassifier(
        encoder, classes=3, pooling=pooling, attention=SoftmaxAttention, last=last
    )
    ours = ours.double().eval()
    states = [
        encoder(input_ids=ids[None, mask]).last_hidden_state[0]
        for ids, mask in zip(x, MASK, strict=True)
    ]
    expected = torch.stack([state[0] if pooling == "cls" else state.mean(0) for state in states])
    assert_close(ours(x.where(MASK, 0), MASK), ours.head(expected), rtol=1e-12, atol=1e-12)
    assert_close(ours(x[:1]), ours.head(expected)[:1], rtol=1e-12, atol=1e-12)
