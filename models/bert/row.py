"""Defines BERT's row in the registry."""

from vlmill.models.bert.config import PRESETS, BertConfig, BertTextConfig
from vlmill.models.rows import Networks, Paper, Variant, task_variant


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.bert import model, published

    return Networks(
        {"bert": model.Bert, "bert-text": model.BertText},
        families={"bert": published.BERT},
        from_bert={model.Bert: lambda bert, state: published.links(bert)},
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(
            name="bert", config=BertConfig, kind="text", objectives=("text_mlm",), starts_from=()
        ),
        task_variant(
            name="bert-text",
            config=BertTextConfig,
            heads={"glue": "pooled"},
            starts_from=(),
        ),
    ),
    presets=PRESETS,
    families=("bert",),
    starts=("bert",),
)
