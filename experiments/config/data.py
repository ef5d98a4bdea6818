"""Settings of the data set: one that is known by name, a user's own data, or a function that loads
them."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, Field

from probattn.experiments.config.schema import find_object, settings_class
from probattn.experiments.config.validation import Count, Seed, setting
from probattn.experiments.data.images import known_sets
from probattn.experiments.data.own import images, rows
from probattn.experiments.data.tables import table_dataset
from probattn.experiments.data.text import text_dataset

# Type of the share of the training part that becomes another part.
PartShare = Annotated[float, Field(gt=0, lt=0.5)]


def _absolute(path: str) -> str:
    """Resolve a path that exists, so that the run can be opened from any folder."""
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path


# Type of the file or folder of a user's data, or the name of a Hugging Face data set.
DataPath = Annotated[str, AfterValidator(_absolute)]


@setting()
class DataSettings:
    """Data set.

    Args:
        name: name of a data set, or ``package.module:function`` of your own.
        batch_size: number of training examples of a step.
        limit: largest number of training examples; None takes all.
        seed: seed of the split into training, validation and test part.
    """

    constructor: ClassVar[Callable[..., Any] | None] = None
    name: str
    batch_size: Count
    limit: Count | None = None
    seed: Seed = 0


@setting()
class OwnDataSettings(DataSettings):
    """A user's own data; further settings are options of their reader.

    Args:
        path: file or folder, or the name of a Hugging Face data set.
        valid_share: share of the training part that becomes the validation part, where the data
            have none.
        test_share: share of the training part that becomes the test part, where the data have none.
    """

    path: DataPath | None = None
    valid_share: PartShare = 0.1
    test_share: PartShare = 0.2


@setting()
class OwnImageSettings(OwnDataSettings):
    """A user's own images.

    Args:
        augment: shift images of training randomly, by up to 4 pixels.
        flip: also mirror them, left to right; not for digits, letters or signs.
    """

    augment: bool = True
    flip: bool = False

    def __post_init__(self) -> None:
        if self.flip and not self.augment:
            raise ValueError("flip mirrors what augment shifts: set data.augment=true, too")


@setting()
class OwnTableSettings(OwnDataSettings):
    """A user's own table.

    Args:
        likelihood: distribution of the numbers of a regression: heteroscedastic (Gaussian, its
            noise depends on the input), gaussian, student-t, or ``package.module:Class`` of your
            own.
        likelihood_options: options of its constructor, such as ``{df: 4}``.
    """

    likelihood: str = "heteroscedastic"
    likelihood_options: dict[str, float] = Field(default_factory=dict)


# Names of the data sets of the papers.
KNOWN = (*known_sets.NAMES, *text_dataset.NAMES)
# Of each kind of a user's own data: base of the settings, reader, and other functions whose options
# are settings.
READERS: dict[str, tuple[Any, ...]] = {
    "image-folder": (OwnImageSettings, images.read, images.labelled_images),
    "image-hf": (OwnImageSettings, images.read_hub_images, images.labelled_images),
    "text-csv": (
        OwnDataSettings,
        partial(rows.read_texts, kind="csv"),
        rows.read_parts,
        rows.text_parts,
    ),
    "text-jsonl": (OwnDataSettings, partial(rows.read_texts, kind="jsonl"), rows.text_parts),
    "text-hf": (OwnDataSettings, rows.read_hub_texts, rows.text_parts),
    "table-csv": (OwnTableSettings, table_dataset.read),
}
# Names of all data sets of this library.
NAMES = (*KNOWN, *READERS)
# Parameters of these functions that are no settings.
GIVEN = ("path", "source", "parts", "given", "kind")


@cache
def data_class(name: str) -> type[DataSettings]:
    """Return the class of the settings of a data set; all but those of its bases are options of its
    reader.

    Args:
        name: a name, or ``package.module:function``, whose options are settings.

    Raises:
        SettingsError: an unknown name, or a function that cannot be imported or has options that
            settings cannot hold.
    """
    if name in KNOWN:
        return DataSettings
    if name in READERS:
        base, *readers = READERS[name]
        return settings_class(name, base, *readers, leave_out=GIVEN, name=name)
    reader = find_object("data set", name, NAMES)
    return settings_class(name, DataSettings, reader, name=name)


def stored_settings(content: Mapping[str, Any]) -> DataSettings:
    """Return the settings of a data set of another's function, which is not imported: its options
    are as stored.

    Raises:
        ValueError, TypeError: names that no function could have, or invalid values of the others.
    """
    options = dict.fromkeys(
        content.keys() - {option.name for option in fields(cast(Any, DataSettings))}, Any
    )
    cls: Any = setting()(type("StoredSettings", (DataSettings,), {"__annotations__": options}))
    return cls(**content)
