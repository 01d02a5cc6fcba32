"""Defines VLMo's row in the registry."""

from functools import partial

from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vlmo import config

# Fields that the stages and their BEiT share; lengths, resolutions, heads, experts may differ.
SHARED_SIZES = (
    *("width", "num_layers", "num_heads", "intermediate_width", "patch_size"),
    *("relative_text_span", "relative_positions", "absolute_positions", "modality_experts"),
)
# Fields of the encoder that may differ between a task and its pretraining.
TASK_SIZES = (
    *("image_size", "max_text_tokens", "num_images", "pooler"),
    *("contrast", "match", "mlm", "num_contrast_pairs"),
)


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.convert import names
    from vlmill.models.vlmo import encoder, model, published, tasks

    return Networks(
        {
            "vlmo": model.Vlmo,
            "vlmo-nlvr2": tasks.VlmoForNlvr2,
            "vlmo-text": tasks.VlmoForText,
            "vlmo-vqa": tasks.VlmoForVqa,
        },
        families={"vlmo": published.VLMO},
        new_weights={encoder.VlmoEncoder: [("patch_embedding.projection.*", names.PYTORCH)]},
    )


task = partial(
    Variant, pretrains=False, body="encoder", starts_from=("beit",), task_sizes=TASK_SIZES
)

ROW = Paper(
    networks=networks,
    variants=(
        Variant(
            name="vlmo",
            config=config.VlmoConfig,
            reads_pixels=True,
            contrasts=True,
            scores_pairs="pixels",
            starts_from=("beit",),
            shared_sizes=SHARED_SIZES,
            task_sizes=TASK_SIZES,
        ),
        task(name="vlmo-nlvr2", config=config.VlmoNlvr2Config, heads={"nlvr2": "pixels"}),
        task(
            name="vlmo-text",
            config=config.VlmoTextConfig,
            heads={"glue": "pooled"},
            task_sizes=(*TASK_SIZES, "first_vl_layer"),  # texts alone meet no image
        ),
        task(
            name="vlmo-vqa",
            config=config.VlmoVqaConfig,
            heads={"vqa": "pixels", "classification": "pixels", "entailment": "pixels"},
        ),
    ),
    presets=config.PRESETS,
    families=("vlmo",),
)
