"""BEiT's row in the registry."""

from vlmill.models.beit.config import (
    BeitConfig,
    beit_base,
    beit_base_paper,
    beit_base_plus,
    beit_large,
    beit_large_paper,
)
from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vlmo.row import SHARED_SIZES


def networks() -> Networks:
    """Imports the networks: a list of sizes does not wait for torch."""
    from vlmill.models.beit.model import Beit
    from vlmill.models.beit.published import BEIT
    from vlmill.models.beit.published_dvae import DVAE

    return Networks({"beit": Beit}, families={"beit": BEIT, "dvae": DVAE})


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
    presets={
        "beit-base": beit_base,
        "beit-base-paper": beit_base_paper,
        "beit-base-plus": beit_base_plus,
        "beit-large": beit_large,
        "beit-large-paper": beit_large_paper,
    },
    families=("beit", "dvae"),
)
