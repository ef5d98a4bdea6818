"""Image files: only regular ones are opened."""

import os
import socket

import pytest
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import open_image
from probattn.experiments.data.ood import datasets


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(os.path.relpath(path))  # the length of such names is limited


SPECIAL = {
    "pipe": (make_pipe, "not a regular file"),
    "socket": (make_socket, "not a regular file"),
    "folder": (os.mkdir, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "a link to nothing"),
    "link in a circle": (lambda path: path.symlink_to(path), "a link to nothing"),
}


@pytest.mark.parametrize(("make", "words"), SPECIAL.values(), ids=SPECIAL)
def test_what_is_no_regular_file_is_named(tmp_path, monkeypatch, make, words):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "a.png")
    with pytest.raises(DatasetError, match=rf"a\.png is {words}"), open_image(tmp_path / "a.png"):
        pytest.fail("was opened")


@pytest.mark.parametrize("make", [make_pipe, make_socket])
def test_a_folder_with_a_pipe_among_its_images_is_refused(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    make(tmp_path / "a.png")
    with pytest.raises(DatasetError, match=r"a\.png is not a regular file"):
        datasets.load(str(tmp_path), size=8, channels=3, in_distribution="cifar10")


def test_a_link_to_an_image_is_opened(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "good.png")
    (tmp_path / "link.png").symlink_to("good.png")
    with open_image(tmp_path / "link.png") as image:
        assert image.getpixel((0, 0)) == (255, 0, 0)
