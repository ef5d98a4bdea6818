"""Settings of the data set: one that is known by name, a user's own data, or a function that loads them."""

import functools
from collections.abc import Callable
from dataclasses import field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from PIL import ImageColor
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from probattn.experiments.config.schema import GROUPS, find_object, settings_class
from probattn.experiments.config.validation import CONFIG, Count, Seed, SettingsError

# Type of the share of the training part that becomes another part.
PartShare = Annotated[float, Field(gt=0, lt=0.5)]
# Type of what separates the columns of a file.
Delimiter = Annotated[str, Field(min_length=1, max_length=1)]


def _absolute(path: str) -> str:
    """Resolve a path that exists, so that the run can be opened from any folder."""
    return str(Path(path).expanduser().resolve()) if Path(path).expanduser().exists() else path


def _columns(names: Any) -> Any:
    """Split names with commas between them, also where YAML takes ``[no]`` for a truth value."""
    return [name.strip(" '\"") for name in names.strip("[]").split(",")] if isinstance(names, str) else names


def _colour(name: str) -> str:
    try:
        ImageColor.getrgb(name)
    except ValueError as error:
        raise ValueError(f"data.background={name} is no colour; name one such as white, or write #rrggbb") from error
    return name


# Type of the file or folder of a user's data, or the name of a Hugging Face data set.
DataPath = Annotated[str, AfterValidator(_absolute)]
# Type of names of columns, as a list or with commas between them.
Columns = Annotated[tuple[str, ...], BeforeValidator(_columns)]
# Type of a colour that Pillow knows.
Colour = Annotated[str, AfterValidator(_colour)]
setting = functools.partial(dataclass, frozen=True, kw_only=True, config=CONFIG)


@setting()
class DataSettings:
    """Data set.

    Args:
        name: name of a data set, or ``package.module:function`` of your own.
        batch_size: number of training examples of a step.
        limit: largest number of training examples; None takes all.
        seed: seed of the split into training, validation and test part.
    """

    name: str
    batch_size: Count
    limit: Count | None = None
    seed: Seed = 0


@setting()
class OwnDataSettings(DataSettings):
    """A user's own data.

    Args:
        path: file or folder, or the name of a Hugging Face data set.
        valid_share: share of the training part that becomes the validation part, where the data have none.
        test_share: share of the training part that becomes the test part, where the data have none.
    """

    path: DataPath | None = None
    valid_share: PartShare = 0.1
    test_share: PartShare = 0.2


@setting()
class ImageFolderSettings(OwnDataSettings):
    """Folders of images, one for each class.

    Args:
        image_size: height and width in pixels, to which images are scaled and cropped.
        augment: crop and flip images of training randomly.
        background: colour that transparent images stand on, by name or as ``#rrggbb``.
    """

    name: Literal["image-folder"] = "image-folder"
    image_size: Count = 32
    augment: bool = True
    background: Colour = "white"


@setting()
class TextFileSettings(OwnDataSettings):
    """Texts in CSV or JSON Lines files.

    Args:
        text_column: column of the texts.
        label_column: column of the labels.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.
    """

    name: Literal["text-csv", "text-jsonl"]
    text_column: str = "text"
    label_column: str = "label"
    delimiter: Delimiter | None = None


@setting()
class TableSettings(OwnDataSettings):
    """Table in CSV files: columns of numbers are standardised by the training part, others are categories.

    Args:
        label_column: column of the labels.
        task: whether the labels are classes or numbers.
        ignore_columns: columns that are no features.
        categorical_columns: columns of numbers that stand for categories.
        number_columns: columns of numbers, also where they only number the rows.
        decimal: decimal mark of the numbers; None finds it in each column.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.
        likelihood: distribution of the numbers of a regression: gaussian, heteroscedastic (its noise depends on the
            input), student-t, or ``package.module:Class`` of your own.
        likelihood_options: options of its constructor, such as ``{df: 4}``.
    """

    name: Literal["table-csv"] = "table-csv"
    label_column: str = "label"
    task: Literal["classes", "regression"] = "classes"
    ignore_columns: Columns = ()
    categorical_columns: Columns = ()
    number_columns: Columns = ()
    decimal: Literal[".", ","] | None = None
    delimiter: Delimiter | None = None
    likelihood: str = "gaussian"
    likelihood_options: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task == "classes" and (self.likelihood != "gaussian" or self.likelihood_options):
            raise SettingsError("data.likelihood is for numbers: set data.task=regression, or leave it out")


@setting()
class _HuggingFaceSettings(OwnDataSettings):
    """Hugging Face data set.

    Args:
        label_column: column of the labels.
        subset: name of a configuration of the data set.
    """

    label_column: str = "label"
    subset: str | None = None


@setting()
class HuggingFaceTextSettings(_HuggingFaceSettings):
    """Texts of a Hugging Face data set.

    Args:
        text_column: column of the texts.
    """

    name: Literal["text-hf"] = "text-hf"
    text_column: str = "text"


@setting()
class HuggingFaceImageSettings(_HuggingFaceSettings, ImageFolderSettings):
    """Images of a Hugging Face data set.

    Args:
        image_column: column of the images.
    """

    name: Literal["image-hf"] = "image-hf"
    image_column: str = "image"


_OWN = (ImageFolderSettings, TextFileSettings, TableSettings, HuggingFaceTextSettings, HuggingFaceImageSettings)
# Settings of a user's own data, by name.
OWN = {name: kind for kind in _OWN for name in get_args(kind.__annotations__["name"])}


@functools.cache
def data_class(name: str) -> type[DataSettings]:
    """Return the class of the settings of a data set.

    Args:
        name: a name, or ``package.module:function``, whose options are settings.

    Raises:
        SettingsError: a function that cannot be imported, or has options that settings cannot hold.
    """
    if function := data_function(name):
        return settings_class(function.__name__, DataSettings, function, defaults={"name": name})
    return OWN.get(name, DataSettings)


def data_function(name: str) -> Callable[..., Any] | None:
    """Return the function of a data set of the user's own, or of one that a package brings; None for others."""
    is_brought = bool(entry_points(group=GROUPS["data set"], name=name))
    return find_object("data set", name, ()) if ":" in name or is_brought else None
