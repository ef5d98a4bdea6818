"""Files of exported programs: atomic, without example values, and run with torch alone."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.functional import jitter
from probattn.inference import export, mean_network, predictor_network

ALONE = """
import json, sys
sys.modules |= {"probattn": None, "pyro": None}
import torch
for name in ("images", "texts"):
    files = {"about.json": ""}
    program = torch.export.load(name + ".pt2", extra_files=files)
    torch.save(program.module()(*torch.load(name + "-inputs.pt")), name + "-outputs.pt")
    print(json.dumps(files))
"""


def test_programs_run_with_torch_alone(images, text, texts, vit, tmp_path):
    expected = {}
    for name, (model, guide), few, given in (
        ("images", vit(), (images(2).float(),), (images(9).float(),)),
        ("texts", text(), texts(2, 3), texts(5, 11)),
    ):
        network = predictor_network(model.float(), guide.float(), num_samples=4)
        export(tmp_path / f"{name}.pt2", network, *few, files={"about.json": "a text, ✓"})
        torch.save(given, tmp_path / f"{name}-inputs.pt")
        expected[name] = network(*given)
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()[-2:]] == 2 * [{"about.json": "a text, ✓"}]
    for name, outputs in expected.items():
        found = torch.load(tmp_path / f"{name}-outputs.pt")
        for key, value in outputs.items():
            assert_close(found[key], value, rtol=0, atol=1e-6)


def test_a_file_holds_neither_the_example_nor_paths_of_this_machine(images, vit, tmp_path):
    export(tmp_path / "a.pt2", mean_network(*vit()), images(2))
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    roots = [str(Path(module.__file__).parent).encode() for module in (torch, jitter, sys.modules[__name__])]
    assert not [name for name, data in content.items() if any(root in data for root in roots)]
    (x,), _ = torch.export.load(tmp_path / "a.pt2").example_inputs
    assert (x == 1).all()


def test_a_program_is_written_whole_or_not_at_all(images, vit, tmp_path, monkeypatch):
    path = tmp_path / "a.pt2"
    network = mean_network(*vit(SoftmaxAttention))
    export(path, network, images())
    before = path.read_bytes()

    def fail(program, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            export(path, network, images())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]
