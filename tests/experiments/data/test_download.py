import pytest

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import datasets
from probattn.experiments.data.ood import datasets as ood_datasets


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.mark.parametrize("name", ["cifar10", "svhn", "textures"])
def test_a_missing_root_folder_is_named_and_not_created(tmp_path, name):
    root = tmp_path / "mistyped"
    with pytest.raises(DatasetError, match=f"there is no folder {root}; correct its name or create it"):
        ood_datasets.load(name, root=root, size=32, channels=3, in_distribution="cifar100")
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_is_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match="no network"):
        datasets.load("cifar10")
    assert (tmp_path / "data").is_dir()
