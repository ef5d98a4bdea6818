# The public names. The package imports each when it is first used: see `__init__.py`.

from . import likelihoods as likelihoods
from .layer_factories import last as last
from .members import Depths as Depths
from .members import Members as Members
from .members import group_heads as group_heads
from .pretrained import PretrainedClassifier as PretrainedClassifier
from .supervised import Classifier as Classifier
from .supervised import Supervised as Supervised
from .tabular import TabularTransformer as TabularTransformer
from .text import TextTagger as TextTagger
from .text import TextTransformer as TextTransformer
from .third_party.replace import replace_attention as replace_attention
from .vit import ViT as ViT
