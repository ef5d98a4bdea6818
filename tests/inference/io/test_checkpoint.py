"""Checkpoints: written atomically, read safely, loaded whole or not at all."""

import os
import pickle
from pathlib import Path

import numpy
import pytest
import torch
from damage import accepted
from pyro.infer.autoguide import AutoNormal
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import CheckpointError, load, save
from probattn.inference.io import checkpoint
from probattn.inference.objective import guide_checks


def build(rank=2):
    layer = KEPSVGPAttention(4, 2, rank=rank)
    return layer, guides.for_model(layer)


def weights(*modules):
    return [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]


def same(first, second):
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


def test_what_is_saved_is_loaded_bit_by_bit(tmp_path):
    path = tmp_path / "run.pt"
    extra = {"step": 3, "value": 0.5, "name": "α", "list": [1, {"deep": torch.arange(3)}], "none": None}
    first, second = build(), build()
    assert not same(weights(*first), weights(*second))
    save(path, *first, **extra)
    loaded = load(path, *second)
    assert same(weights(*first), weights(*second))
    deep = loaded["list"][1].pop("deep")
    assert torch.equal(deep, torch.arange(3))
    assert loaded == {"step": 3, "value": 0.5, "name": "α", "list": [1, {}], "none": None}
    assert os.listdir(tmp_path) == ["run.pt"]


def test_a_materialised_auto_guide_comes_back(tmp_path):
    x = torch.randn(2, 3, 4)
    pairs = []
    for _ in range(2):
        model = KEPSVGPAttention(4, 2, rank=2)
        guide = AutoNormal(model)
        guide_checks.materialise(guide, (x,))
        pairs.append((model, guide))
    save(tmp_path / "a.pt", *pairs[0])
    load(tmp_path / "a.pt", *pairs[1])
    assert same(weights(*pairs[0]), weights(*pairs[1]))
    assert len(list(pairs[0][1].parameters())) == 2


def test_an_auto_guide_without_parameters_is_refused(tmp_path):
    x, model = torch.randn(2, 3, 4), KEPSVGPAttention(4, 2, rank=2)
    guide = AutoNormal(model)
    guide_checks.materialise(guide, (x,))
    save(tmp_path / "a.pt", model, guide)
    with pytest.raises(CheckpointError, match="guide: .*, here missing"):
        load(tmp_path / "a.pt", model, AutoNormal(model))


def test_the_model_alone_is_enough(tmp_path):
    first, second = build(), build()
    save(tmp_path / "a.pt", first[0])
    load(tmp_path / "a.pt", second[0])
    assert same(weights(first[0]), weights(second[0]))
    with pytest.raises(CheckpointError, match="guide: u.loc missing"):
        load(tmp_path / "a.pt", *second)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_midway_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error):
    path = tmp_path / "run.pt"
    old = build()
    save(path, *old, step=1)
    before = path.read_bytes()

    def fail(path, content):
        path.write_text("half of a file")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        with pytest.raises(type(error)):
            save(path, *build(), step=2)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.pt"]
    assert load(path, *build())["step"] == 1


def test_the_new_file_is_on_disk_before_it_takes_the_old_ones_place(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("fsync"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (order.append("replace"), replace(a, b))[1])
    save(tmp_path / "a.pt", *build())
    assert order == ["fsync", "replace"]


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def dump(path, content):
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("write", [dump, lambda path, content: torch.save(content, path)])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, write):
    path, marker = tmp_path / "a.pt", tmp_path / "was-run"
    content = {"format": checkpoint.FORMAT, "model": {}, "guide": {}, "layers": {}, "extra": Malicious(marker)}
    write(path, content)
    with pytest.raises(CheckpointError, match="a.pt is damaged"):
        load(path, *build())
    assert not marker.exists()


def test_truncated_at_any_length_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "last.pt"
    save(path, *build())
    whole = path.read_bytes()
    pair = build()
    before = weights(*pair)
    for length in [0, 1, 2, 4, 30, *range(31, len(whole), len(whole) // 60), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"last\.pt is damaged"):
            load(path, *pair)
    assert same(weights(*pair), before)


def test_flipped_bits_of_weights_are_noticed(tmp_path):
    """Those of the archive's own bookkeeping may change nothing that is read."""
    model = nn.Linear(3, 2)
    path = tmp_path / "a.pt"
    save(path, model, step=7)
    whole = weights(model)
    for content in accepted(path, checkpoint.read, error=CheckpointError, amount=60):
        assert same([content["model"]], whole)
        assert content["extra"] == {"step": 7}


def test_a_flipped_bit_in_a_weight_is_refused(tmp_path):
    path = tmp_path / "last.pt"
    model, guide = build()
    with torch.no_grad():
        model.out.bias.fill_(1.2345678)
    save(path, model, guide)
    whole = path.read_bytes()
    at = whole.index(model.out.bias.detach().numpy().tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CheckpointError, match="damaged"):
        load(path, *build())


def test_pytorch_reads_a_checkpoint_without_this_library(tmp_path):
    model, guide = build()
    save(tmp_path / "a.pt", model, guide, step=7)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert content["extra"] == {"step": 7}
    assert same([content["model"]], weights(model))


def test_tensors_that_are_shared_are_saved_once(tmp_path):
    large = torch.randn(10_000)
    save(tmp_path / "a.pt", nn.Linear(1, 1), one=large, other=large)
    assert (tmp_path / "a.pt").stat().st_size < 60_000
    loaded = load(tmp_path / "a.pt", nn.Linear(1, 1))
    assert all(torch.equal(loaded[name], large) for name in ("one", "other"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("width", [4, 400])
def test_on_a_full_disk_the_old_file_stays(tmp_path, width):
    """With weights larger than Python's buffer, only PyTorch sees the error, and raises a different one."""
    path, model = tmp_path / "run.pt", nn.Linear(width, width)
    save(path, model, step=1)
    (tmp_path / ".run.pt.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        save(path, model, step=2)
    assert os.listdir(tmp_path) == ["run.pt"]
    assert load(path, model)["step"] == 1


@pytest.mark.parametrize("content", [{"format": "other"}, {"model": {}}, [1, 2], torch.zeros(3)])
def test_another_programs_file_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged"):
        load(tmp_path / "a.pt", *build())


def test_a_missing_file_and_a_folder_are_errors_that_name_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.pt is damaged, missing"):
        load(tmp_path / "none.pt", *build())
    with pytest.raises(CheckpointError, match="missing"):
        load(tmp_path, *build())


def test_another_architecture_is_refused_whole_with_its_differences(tmp_path):
    path = tmp_path / "a.pt"
    save(path, *build(rank=1))
    pair = build(rank=2)
    before = weights(*pair)
    with pytest.raises(CheckpointError, match="another architecture") as error:
        load(path, *pair)
    assert same(weights(*pair), before)
    assert "model: log_scale (2, 1), here (2, 2)" in str(error.value)
    save(path, *build())
    model = nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    with pytest.raises(CheckpointError, match="model: weight missing, here") as error:
        load(path, model)
    assert "model: log_scale (2, 2), here missing" in str(error.value)
    assert torch.equal(model.weight, weight)


def test_a_guide_of_another_family_leaves_the_model_untouched(tmp_path):
    path = tmp_path / "a.pt"
    save(path, *build())
    model, _ = build()
    guide = guides.for_model(model, "diagonal")
    before = weights(model, guide)
    with pytest.raises(CheckpointError, match="guide: u.raw_scale missing"):
        load(path, model, guide)
    assert same(weights(model, guide), before)


@pytest.mark.parametrize("extra", [{"where": Path("x")}, {"number": numpy.float64(0.5)}])
def test_what_could_not_be_read_back_is_not_written(tmp_path, extra):
    path = tmp_path / "a.pt"
    model = torch.nn.Linear(2, 1)
    save(path, model, good=1)
    before = path.read_bytes()
    with pytest.raises(pickle.UnpicklingError):
        save(path, model, **extra)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_another_number_of_heads_is_another_architecture(tmp_path):
    save(tmp_path / "a.pt", SoftmaxAttention(8, 2))
    with pytest.raises(CheckpointError, match=r"'heads': 2.*, here .*'heads': 4"):
        load(tmp_path / "a.pt", SoftmaxAttention(8, 4))
    load(tmp_path / "a.pt", SoftmaxAttention(8, 2))


def test_another_prior_is_another_architecture(tmp_path):
    save(tmp_path / "a.pt", KEPSVGPAttention(8, 2, rank=2))
    for prior in ("laplace", "student_t"):
        with pytest.raises(CheckpointError, match=f"'prior': 'normal'.*, here .*'prior': '{prior}"):
            load(tmp_path / "a.pt", KEPSVGPAttention(8, 2, rank=2, prior=prior))
