"""Which changes of a recipe's fields are named as changing nothing."""

import pytest

from vlmill.train.recipes import change_recipe, recipe_named
from vlmill.train.recipes.without_effect import without_effect
from vlmill.train.tasks.registry import task_recipe_named


@pytest.mark.parametrize(
    ("recipe", "words", "reasons"),
    [
        ("imagebert-small", ["optimizer.momentum=0.5"], ["kind=adamw"]),
        ("imagebert-small", ["optimizer.lr=0.1", "optimizer.warmup=0.2"], []),
        (
            "imagebert-small",
            ["optimizer.warmup=0.2", "optimizer.warmup_steps=5"],
            ["warmup_steps=5"],
        ),
        ("imagebert-small", ["stages.0.optimizer.drop_factor=0.5"], ["schedule=linear"]),
        ("imagebert-small", ["feeding.crop=[0.2, 1.0]"], ["kind=regions"]),
        ("imagebert-small", ["masking.group_overlap=0.1"], ["region_rule=regions"]),
        ("imagebert-small", ["validation_pairs=10"], ["validate_every=0"]),
        ("imagebert-small", ["validation_pairs=10", "validate_every=5"], []),
        ("imagebert-small", ["negative_share=0", "hard_negative_share=0.1"], ["negative_share=0"]),
        ("imagebert-small", ["optimizer.bert_rate=0.1"], ["without --init"]),
        ("imagebert-small", ["attention_kernel=true"], ["variant=imagebert has no relative"]),
        ("vlmo-base-plus", ["attention_kernel=true"], ["variant=vlmo has no relative"]),
        ("vlmo-small", ["attention_kernel=true"], []),
        ("vlmo-small", ["residual_kernel=true"], ["variant=vlmo has no layer scale"]),
        ("vlmo-base", ["residual_kernel=true"], []),
        ("vlmo-base", ["residual_kernel=true", "compile=blocks"], ["compile=blocks joins"]),
        ("imagebert-small", ["run_ahead=true", "optimizer.kind=sgd"], ["optimizer.kind=sgd"]),
        ("imagebert-small", ["run_ahead=true", "precision=fp16"], ["precision=fp16 scales"]),
        ("imagebert-small", ["run_ahead=true"], []),
        ("vlmo-small", ["feeding.max_regions=5", "feeding.crop=[0.2, 1.0]"], ["kind=pixels"]),
    ],
)
def test_of_pretraining(recipe: str, words: list[str], reasons: list[str]) -> None:
    changed = change_recipe(recipe_named(recipe), words)
    sentences = list(without_effect(changed, [recipe, *words]))
    assert len(sentences) == len(reasons)
    for sentence, reason in zip(sentences, reasons, strict=True):
        assert sentence.split("=")[0] in "".join(words) and f"has no effect: {reason}" in sentence


@pytest.mark.parametrize(
    ("recipe", "word", "reason"),
    [
        ("vqa-vilbert-small", "settings.mirror_words=true", "feeding.flip=0"),
        ("vqa-vl-bert-paper", "settings.unlabelled=false", "loss=softmax"),
        ("vqa-vilbert-small", "settings.unlabelled=false", None),
        ("refcoco-vilbert-small", "settings.choose_whole=true", None),
        ("vcr-vilbert-small", "settings.masking.words=0.2", "words=false and regions=none"),
        ("retrieval-vilbert-small", "settings.margin=0.1", "losses=['softmax']"),
        ("retrieval-imagebert-all-losses", "settings.margin=0.1", None),
        ("retrieval-vilbert-small", "settings.nearest=false", None),
        ("retrieval-vlmo-small", "settings.num_candidates=3", "negatives=batch"),
        ("vqa-vlmo-small", "attention_kernel=true", None),
        ("vqa-vilbert-small", "attention_kernel=true", "variant=vilbert-tasks has no"),
        ("glue-bert-small", "settings.scores=runs/*", "it is for evaluations only"),
    ],
)
def test_of_tasks(recipe: str, word: str, reason: str | None) -> None:
    changed = change_recipe(task_recipe_named(recipe), [word])
    sentences = list(without_effect(changed, [word], init="runs/small"))
    assert sentences == ([] if reason is None else [s for s in sentences if reason in s])
    assert len(sentences) == (reason is not None)


def test_the_size_of_a_given_vocabulary_is_its_own() -> None:
    recipe, words = recipe_named("imagebert-small"), ["vocabulary_size=50"]
    assert not list(without_effect(recipe, words))
    assert list(without_effect(recipe, words, vocab="vocab.txt")) == [
        "vocabulary_size=50 has no effect: --vocab is the vocabulary"
    ]
