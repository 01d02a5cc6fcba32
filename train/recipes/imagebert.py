"""ImageBERT (Qi et al., arXiv:2001.07966). The paper has no released code; what it leaves open is
marked [choice]."""

from vlmill.models.imagebert import imagebert_base, imagebert_small
from vlmill.train.recipes.base import Optimizer, Recipe, Stage


def imagebert() -> Recipe:
    """The best pretraining of the paper: LAIT first, then Conceptual Captions and SBU (table 3).

    Weights are carried over between the stages, optimiser and schedule start anew [choice]. The
    paper starts from BERT-base; without ``--init`` this starts from random weights.
    """

    def stage(name: str, sources: tuple[str, ...]) -> Stage:
        return Stage(
            name=name,
            sources=sources,
            epochs=17,  # sec. 5.2; read as 17 for each stage [choice]
            batch_size=48,  # sec. 5.2, over all devices
            optimizer=Optimizer(lr=1e-4),  # sec. 5.2; the rest of the optimiser is BERT's [choice]
        )

    return Recipe(
        name="imagebert",
        variant="imagebert",
        model=imagebert_base(),
        stages=(stage("lait", ("lait",)), stage("cc-sbu", ("cc", "sbu"))),
        save_every=10_000,
        log_every=100,
        workers=4,
    )


def imagebert_small_recipe() -> Recipe:
    """For trials on a CPU: minutes for some thousand pairs, from random weights."""
    # Chosen on pairs with regions of a random detector. On 59 of them, 36 regions each: R@1 of 1.00
    # and 0.95 on these pairs in 4 minutes of one core. Dropout delays matching (42 pairs: its loss
    # after 300 steps 0.06 without, 0.48 with 0.1).
    return Recipe(
        name="imagebert-small",
        variant="imagebert",
        model=imagebert_small(dropout=0.0),
        vocabulary_size=4000,
        standardise_features=True,
        stages=(Stage(name="pairs", steps=600, batch_size=32, optimizer=Optimizer(lr=5e-4)),),
        save_every=200,
    )
