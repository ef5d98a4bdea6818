"""`--data` must name an existing folder."""

import pytest

KEP = "digits/kep-svgp"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "kep-svgp/cifar10"],
        ["train", "kep-svgp/cola"],
        ["evaluate", "RUN", "--ood", "svhn"],
        ["study", "kep-svgp/cifar10-softmax", "--seeds", "1", "--workers", "1"],
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_a_missing_folder_is_named_and_not_created(
    command, kep, tmp_path, monkeypatch, arguments, contents, is_one_message
):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    code, out, err = command(*(each.replace("RUN", str(kep)) for each in arguments), "--data", tmp_path / "mistyped")
    assert (code, out) == (1, "")
    assert is_one_message(err, tmp_path / "mistyped", "does not exist", "--data")
    assert not (tmp_path / "mistyped").exists()
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()
