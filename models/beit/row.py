"""Defines BEiT's row in the registry."""

from vlmill.models.beit.config import PRESETS, BeitConfig
from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vlmo.row import SHARED_SIZES


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.beit import model, published

    return Networks({"beit": model.Beit}, families={"beit": published.BEIT, "dvae": published.DVAE})


ROW = Paper(
    networks=networks,
    variants=(
        Variant(
            name="beit",
            config=BeitConfig,
            kind="pictures",
            objectives=("mim",),
            reads_text=False,
            reads_pixels=True,
            starts_from=(),
            shared_sizes=SHARED_SIZES,
        ),
    ),
    presets=PRESETS,
    families=("beit", "dvae"),
    starts=("beit", "vit"),
    expert_starts=("beit", "vit"),
)
