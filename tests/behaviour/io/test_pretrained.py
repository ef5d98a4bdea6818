"""Folders that share a model: what is read is what was written, and refused if anything does not
belong."""

import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from small_vit import small_vit
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import (
    CheckpointError,
    load_pretrained,
    predict,
    save_pretrained,
    upload_pretrained,
)
from probattn.inference.imports import MissingExtraError
from probattn.models import Classifier


def classifier(*, classes=3, heads=2):
    layer = KEPSVGPAttention.partial(rank=2, multiple=2)
    model = Classifier(small_vit(layer, heads=heads, classes=classes), num_data=10)
    return model, guides.for_model(model)


def build(*, heads=2, seed=0):
    torch.manual_seed(seed)
    return classifier(heads=heads)


@pytest.fixture
def shared(tmp_path):
    model, guide = build()
    save_pretrained(
        tmp_path / "shared", model, guide, config={"dim": 8}, files={"words.txt": b"a b"}
    )
    return tmp_path / "shared"


def test_what_is_shared_predicts_bit_for_bit_the_same(shared):
    first, second, x = build(), build(seed=1), torch.randn(5, 1, 4, 4)
    assert load_pretrained(shared, *second) == {"dim": 8}
    assert torch.equal(
        *(predict(*pair, x, num_samples=4, seed=3).probs for pair in (first, second))
    )


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", lambda path: path.write_text("{}")),
        ("model.safetensors", lambda path: path.unlink()),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("words.txt", lambda path: path.write_bytes(b"b a")),
    ],
)
def test_a_damaged_folder_is_refused_and_the_model_stays_as_it_was(shared, name, damage):
    damage(shared / name)
    model, guide = build(seed=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=name):
        load_pretrained(shared, model, guide)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_folder_holds_no_pickle_and_a_model_card_that_a_user_has_edited_stays(shared):
    names = sorted(path.name for path in shared.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "words.txt"]
    (shared / "README.md").write_text("mine")
    save_pretrained(shared, *build(seed=4))
    assert (shared / "README.md").read_text() == "mine"
    load_pretrained(shared, *build())


def test_without_the_extra_folders_work_and_the_hub_names_it(shared, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    load_pretrained(shared, *build())
    for call in (
        lambda: load_pretrained("hf://user/model", *build()),
        lambda: upload_pretrained(shared, "user/model"),
    ):
        with pytest.raises(MissingExtraError, match="huggingface"):
            call()


@pytest.mark.parametrize("name", ["runs/typo", "run", "./a/b", "user/model", "hf:user/model"])
def test_a_name_that_is_no_folder_never_asks_a_network(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda *address: asked.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **options: asked.append(address))
    with pytest.raises(FileNotFoundError, match=f"no folder {name}"):
        load_pretrained(name, *build())
    assert asked == []


def test_a_model_that_the_hub_has_not_is_named(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def download(*arguments, **options):
        raise OSError("no connection")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(OSError, match="hf://user/model.*no connection"):
        load_pretrained("hf://user/model", *build())


def test_models_of_the_hub_come_without_anything_that_could_hold_code_and_uploads_send_the_folder(
    shared, monkeypatch
):
    hub, calls = pytest.importorskip("huggingface_hub"), []

    def download(name, **options):
        calls.append((name, options["revision"], options["token"]))
        assert options["allow_patterns"] == ["*.json", "*.safetensors", "README.md"]
        return str(shared)

    def create_repo(repo_id, *, private, token, exist_ok):
        calls.append((repo_id, private, token, exist_ok))
        return SimpleNamespace(repo_id=f"user/{repo_id}")

    def upload_folder(**options):
        calls.append(
            tuple(options[name] for name in ("repo_id", "folder_path", "token", "revision"))
        )
        return SimpleNamespace(commit_url="https://hub/commit")

    for function in (create_repo, upload_folder):
        monkeypatch.setattr(hub, function.__name__, function)
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert load_pretrained("hf://user/model", *build(seed=1), revision="v1", token="t") == {
        "dim": 8
    }
    assert (
        upload_pretrained(shared, "model", private=True, token="t", revision="dev")
        == "https://hub/commit"
    )
    assert calls == [
        ("user/model", "v1", "t"),
        ("model", True, "t", True),
        ("user/model", shared, "t", "dev"),
    ]


def test_a_users_own_class_with_the_mixin_of_hugging_face_is_saved_with_its_guide(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Mine(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self, classes=3):
            super().__init__()
            self.model, self.guide = classifier(classes=classes)

    mine, x = Mine(classes=4), torch.randn(3, 1, 4, 4)
    mine.save_pretrained(tmp_path / "mine")
    loaded = Mine.from_pretrained(tmp_path / "mine")
    assert torch.equal(
        *(
            predict(each.model, each.guide, x, num_samples=3, seed=0).probs
            for each in (mine, loaded)
        )
    )
