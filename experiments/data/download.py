"""Archives that are downloaded, checked, and unpacked without leaving their folder."""

import tarfile
import zlib
from pathlib import Path

from torchvision.datasets.utils import download_url


def fetch(url: str, root: Path, *, filename: str, md5: str | None) -> None:
    """Downloads a tar archive into ``root``, unless it lies there already, and unpacks it there.

    Raises:
        OSError, RuntimeError, http.client.HTTPException: no network, another MD5 sum, or an archive that is damaged or
            has a member which would leave the folder.
    """
    download_url(url, root, filename=filename, md5=md5)
    try:
        with tarfile.open(root / filename) as archive:
            archive.extractall(root, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise RuntimeError(f"cannot unpack {(root / filename).absolute()}: {error}") from error
