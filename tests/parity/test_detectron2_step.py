"""One training step beside Detectron2's own, where it is installed: losses and every gradient."""

import pytest
from peers.detectron2_step import Work, is_there, our_step, their_step

WORK = Work(depth=50, images=2, height=96, width=128, regions=16, narrow=True)


@pytest.mark.skipif(not is_there(), reason="Detectron2 is not installed (docs/install.md)")
def test_a_step_has_detectron2s_losses_and_gradients() -> None:
    """The same weights, images and boxes; Detectron2 draws its examples by our permutations."""
    (ours, our_losses), (theirs, their_losses) = (
        (model, step(False)) for model, step in (our_step(WORK), their_step(WORK))
    )
    assert our_losses == pytest.approx(their_losses, rel=1e-4)
    assert min(our_losses.values()) > 0
    gradients = [
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for model in (ours, theirs)
    ]
    assert gradients[0].keys() == gradients[1].keys()
    for name, theirs_of_it in gradients[1].items():
        far = (gradients[0][name] - theirs_of_it).abs().max() / theirs_of_it.abs().max()
        assert far < 1e-3, name
