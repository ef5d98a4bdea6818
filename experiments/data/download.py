"""Download of archives, with a check of their MD5 sum, and extraction that cannot leave the folder."""

import tarfile
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path

from torchvision.datasets.utils import download_url

from probattn.experiments.data.root import DEFAULT


def download_and_extract(url: str, root: Path, *, filename: str, md5: str | None) -> None:
    """Download a tar archive into ``root``, unless it is there already, and extract it there.

    Raises:
        OSError, RuntimeError, http.client.HTTPException: no such folder, no network, a wrong MD5 sum, or an archive
            that is damaged or has a member outside the folder.
    """
    check_folder(root)
    download_url(url, root, filename=filename, md5=md5)
    try:
        with tarfile.open(root / filename) as archive:
            archive.extractall(root, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise RuntimeError(f"cannot unpack {(root / filename).absolute()}: {error}") from error


def is_reachable(url: str) -> bool:
    """Return True if a server answers for this address within ten seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10):
            return True
    except (OSError, HTTPException):
        return False


def check_folder(root: Path) -> None:
    """Raise FileNotFoundError if a root folder other than the default is missing; a download would create it."""
    if not root.is_dir() and root != DEFAULT:
        raise FileNotFoundError(f"there is no folder {root.absolute()}; correct its name or create it")
