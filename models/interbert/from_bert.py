"""Links the weights of InterBERT that start from BERT."""

from collections.abc import Mapping

from torch import Tensor

from vlmill.models.convert.keymap import Link
from vlmill.models.convert.names import layers_from_bert, mlm_head_links, text_embedding_links
from vlmill.models.interbert.model import InterBert


def links(model: InterBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links BERT's layers to the interaction module and then to the text's extraction module.

    At the released depth interaction has BERT's layers 0 to 5 and the text's module 6 to 11; at the
    paper's depth interaction has all twelve, and both extraction modules are new.
    """
    counts = [len(model.interaction_layers), len(model.text_layers)]
    return [
        *text_embedding_links(),
        *layers_from_bert("interaction_layers", "text_layers", counts=counts),
        *mlm_head_links(),
    ]
