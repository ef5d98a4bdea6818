"""ONNX files: layers that ONNX can express, and a sentence for those that it cannot."""

import logging
import sys

import pytest
import torch
from export_cases import LAYERS
from torch import nn
from torch.testing import assert_close

from probattn.inference import export_onnx, mean_network, predictor_network
from probattn.inference.imports import MissingExtraError

WITHOUT_ONNX = ("kep-svgp-svd", "kep-svgp-residual", "sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp")


def test_texts_of_any_length_give_what_the_network_gives(text, texts, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, guide = text()
    network = predictor_network(model.float(), guide.float(), num_samples=3)
    export_onnx(tmp_path / "a.onnx", network, *texts(2, 3), metadata={"about": "a text, ✓"})
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    x, mask = texts(5, 11)
    found = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
    for name, value in zip((each.name for each in session.get_outputs()), found, strict=True):
        assert_close(torch.from_numpy(value), network(x, mask)[name], rtol=0, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["about"] == "a text, ✓"


def test_messages_of_the_converter_are_not_printed(images, vit, tmp_path, caplog, monkeypatch):
    pytest.importorskip("onnxscript")

    def convert(*_, **__):
        logging.getLogger("onnxscript.optimizer").warning("Skipping constant folding for op Split")
        raise InterruptedError

    monkeypatch.setattr(torch.onnx, "export", convert)
    with pytest.raises(InterruptedError):
        export_onnx(tmp_path / "a.onnx", mean_network(*vit()), images(2))
    assert [each.message for each in caplog.records if each.name.startswith("onnx")] == []
    assert logging.getLogger("onnxscript").level == logging.NOTSET


@pytest.mark.parametrize("name", WITHOUT_ONNX)
def test_a_factorisation_that_onnx_does_not_have_is_named(images, vit, name, tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(ValueError, match=r"ONNX has no .*linalg_\w+.*: write a program \(\.pt2\)"):
        export_onnx(tmp_path / "a.onnx", mean_network(*vit(LAYERS[name])), images(2))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_and_another_suffix_are_named(images, vit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    network = mean_network(*vit())
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[onnx\]'"):
        export_onnx(tmp_path / "a.onnx", network, images(2))
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        export_onnx(tmp_path / "a.pt2", network, images(2))


class _Entropy(nn.Module):
    def forward(self, x):
        return {"terms": torch.special.entr(x)}


def test_entropies_are_those_of_pytorch_also_of_zero_and_nan(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    probs = torch.tensor([[0.0, 0.25, 1.0], [0.5, 0.5, torch.nan]])
    export_onnx(tmp_path / "a.onnx", _Entropy(), probs)
    (found,) = onnxruntime.InferenceSession(tmp_path / "a.onnx").run(None, {"x": probs.numpy()})
    assert_close(torch.from_numpy(found), torch.special.entr(probs), equal_nan=True)
