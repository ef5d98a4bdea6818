"""Settings of the data set: one that is known by name, or a user's own data."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import STRICT, Count, Seed

PartShare = Annotated[float, Field(gt=0, lt=0.5)]
"""Type of the share of the training part that becomes another part."""


def _absolute(path: str) -> str:
    """Resolve a path that exists, so that the run can be opened from any folder."""
    return str(Path(path).expanduser().resolve()) if Path(path).expanduser().exists() else path


DataPath = Annotated[str, AfterValidator(_absolute)]
"""Type of the file or folder of a user's data, or the name of a Hugging Face data set."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSettings:
    """Data set and the seed of its validation split; ``limit`` is the largest number of training examples."""

    name: str
    batch_size: Count
    limit: Count | None = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnDataSettings(DataSettings):
    """A user's own data.

    ``path`` is the file or folder, ``label_column`` the column of the labels. Where the data have no validation or test
    part of their own, ``valid_share`` and ``test_share`` of the training part become one, chosen by ``seed``.
    """

    path: DataPath | None = None
    valid_share: PartShare = 0.1
    test_share: PartShare = 0.2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImageFolderSettings(OwnDataSettings):
    """Folders of images, one for each class.

    Images are scaled and cropped to ``image_size`` × ``image_size``; with ``augment`` those of training are randomly
    cropped and flipped.
    """

    name: Literal["image-folder"] = "image-folder"
    image_size: Count = 32
    augment: bool = True


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextFileSettings(OwnDataSettings):
    """Texts in CSV or JSON Lines files; ``delimiter`` of CSV None is a tab in ``.tsv`` files, else a comma."""

    name: Literal["text-csv", "text-jsonl"]
    text_column: str = "text"
    label_column: str = "label"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TableSettings(OwnDataSettings):
    """Table in CSV files: all columns are features, except that of the labels and those of ``ignore_columns``.

    Columns of numbers are standardised by the training part, others are categories, as are those of
    ``categorical_columns``.
    """

    name: Literal["table-csv"] = "table-csv"
    label_column: str = "label"
    task: Literal["classes", "regression"] = "classes"
    ignore_columns: tuple[str, ...] = ()
    categorical_columns: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _HuggingFaceSettings(OwnDataSettings):
    """Hugging Face data set: ``path`` is a folder of ``save_to_disk`` or a name; splits of None are chosen by seed."""

    label_column: str = "label"
    subset: str | None = None
    train_split: str = "train"
    valid_split: str | None = "validation"
    test_split: str | None = "test"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HuggingFaceTextSettings(_HuggingFaceSettings):
    """Texts of a Hugging Face data set."""

    name: Literal["text-hf"] = "text-hf"
    text_column: str = "text"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HuggingFaceImageSettings(_HuggingFaceSettings):
    """Images of a Hugging Face data set; ``image_size`` and ``augment`` as for folders."""

    name: Literal["image-hf"] = "image-hf"
    image_column: str = "image"
    image_size: Count = 32
    augment: bool = True


OWN: dict[str, type[OwnDataSettings]] = {
    "image-folder": ImageFolderSettings,
    "text-csv": TextFileSettings,
    "text-jsonl": TextFileSettings,
    "table-csv": TableSettings,
    "text-hf": HuggingFaceTextSettings,
    "image-hf": HuggingFaceImageSettings,
}
"""Settings of a user's own data, by name."""


def _kind(data: Any) -> str:
    name = data.get("name") if isinstance(data, dict) else getattr(data, "name", None)
    return OWN[name].__name__ if name in OWN else "DataSettings"


AnyDataSettings = Annotated[
    Annotated[DataSettings, Tag("DataSettings")]
    | Annotated[ImageFolderSettings, Tag("ImageFolderSettings")]
    | Annotated[TextFileSettings, Tag("TextFileSettings")]
    | Annotated[TableSettings, Tag("TableSettings")]
    | Annotated[HuggingFaceTextSettings, Tag("HuggingFaceTextSettings")]
    | Annotated[HuggingFaceImageSettings, Tag("HuggingFaceImageSettings")],
    Discriminator(_kind),
]
