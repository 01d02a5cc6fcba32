"""What papers and released codes print of fine-tuning; rows as in ``published_numbers``."""

from typing import Any

from tests.train.recipes.published_numbers import (
    ADAM_OF_VLMO,
    IMAGEBERT,
    INTERBERT,
    VILBERT,
    VLBERT,
    VLMO,
    Row,
    fed,
    run,
)

MMF_OR_12IN1 = "[code] of facebookresearch/vilbert-multi-task or facebookresearch/mmf"
DROPS = (12.0, 16.0)
INTERBERT_DROPS = (*DROPS, 20.0, 22.0, 26.0)
NO_AVERAGE, AVERAGE = {"average": 0.0}, {"average": 0.9999}


def of_vilbert(task: str) -> str:
    """The released recipes of a task with ViLBERT and its baseline."""
    return f"{task}-vilbert {task}-vilbert-from-bert {task}-single-stream*"


def vlmo(lr: float, batch_size: int, **more: Any) -> dict[str, Any]:
    """A run of VLMo's code."""
    return run(lr, batch_size, warmup=0.1, warmup_steps=None, **ADAM_OF_VLMO, **more)


def vlmo_rows(task: str, of_size: dict[str, tuple[float, float]]) -> tuple[Row, ...]:
    """The rate and the drop path of each size, and of the paper's recipes of base and large."""
    rows: list[Row] = []
    for size, (lr, drop_path) in of_size.items():
        names = f"{task}-vlmo-{size}" + (f" {task}-vlmo-{size}-paper" if "plus" not in size else "")
        fields = vlmo(lr, 128, epochs=10) | {"model.encoder.drop_path": drop_path}
        rows.append((names, f"{VLMO}, sec. 4.2; drop path [code]", fields))
    return tuple(rows)


def of_12in1(lr: float, batch_size: int, *, epochs: int) -> dict[str, Any]:
    """A single-task run of ``vilbert_tasks.yml``."""
    return run(lr, batch_size, epochs=epochs, warmup=0.1, warmup_steps=None, drops=DROPS)


def of_mmf(lr: float, batch_size: int, *, steps: int, warmup_steps: int) -> dict[str, Any]:
    """A run of mmf's ``projects/vilbert/configs``."""
    fields = run(lr, batch_size, steps=steps, warmup_steps=warmup_steps, eps=1e-8, clip=0.0)
    return fields | {"feeding.max_tokens": 128}


def retrieval_rows() -> tuple[Row, ...]:
    """VLMo's runs on COCO and Flickr30k: rate, batch, length, drop path."""
    runs: dict[str, tuple[float, dict[str, int], float]] = {
        "base-coco": (3e-5, {"steps": 3000}, 0.2),
        "base-flickr30k": (3e-5, {"steps": 1500}, 0.15),
        "base-plus-coco": (3e-5, {"steps": 3000}, 0.2),
        "base-plus-flickr30k": (3e-5, {"steps": 1500}, 0.2),
        "large-coco": (2e-5, {"steps": 3000}, 0.2),
        "large-flickr30k": (2e-5, {"steps": 1500}, 0.2),
        "base-paper-coco": (2e-5, {"epochs": 20}, 0.2),
        "base-paper-flickr30k": (1e-5, {"epochs": 40}, 0.15),
        "large-paper-coco": (1e-5, {"epochs": 10}, 0.2),
        "large-paper-flickr30k": (1e-5, {"epochs": 40}, 0.2),
    }
    rows: list[Row] = []
    for name, (lr, length, drop_path) in runs.items():
        paper = "paper" in name
        source = f"{VLMO}, sec. 4.3; warm-up and drop path [code]" if paper else "[code]"
        fields = vlmo(lr, 2048 if paper else 3072, **length)
        more = {"model.drop_path": drop_path, "feeding.image_size": 384}
        rows.append((f"retrieval-vlmo-{name}", source, fields | more))
    return tuple(rows)


FINE_TUNING: tuple[Row, ...] = (
    (
        "glue-* nlvr2-* refcoco-* vqa-* vcr-vilbert* vcr-single-stream* vcr-vl-bert* "
        "retrieval-vilbert* retrieval-imagebert* retrieval-vlmo-*",
        "none of these codes averages weights; GLUE with InterBERT without it, too [choice]",
        NO_AVERAGE,
    ),
    ("retrieval-interbert* vcr-interbert*", f"{INTERBERT}, sec. 4; [code]", AVERAGE),
    # ViLBERT.
    (
        f"{of_vilbert('vqa')} vqa-vilbert-paper",
        f"{VILBERT}, sec. 3.3; warm-up, tokens and regions [code]",
        run(4e-5, 256, epochs=20, warmup=0.1, warmup_steps=None) | fed(16, 99),
    ),
    (of_vilbert("vqa"), "[code]: the head at 1e-4", run(4e-5, 256, head_rate=2.5, drops=DROPS)),
    (
        f"{of_vilbert('vcr')} vcr-vilbert-paper",
        f"{VILBERT}, sec. 3.3; tokens and regions [code]",
        run(2e-5, 64, epochs=20, warmup_steps=None)
        | {"settings.max_tokens": 60, "settings.max_tokens_with_answer": 80}
        | {"feeding.max_regions": 99},
    ),
    (
        of_vilbert("vcr"),
        "[code]: a tenth of the iterations, of two updates each",
        run(2e-5, 64, warmup=0.05, drops=DROPS) | {"settings.in_turns": True},
    ),
    ("vcr-vilbert-paper", "BERT's [choice]", {"optimizer.warmup": 0.1}),
    (
        f"{of_vilbert('refcoco')} refcoco-vilbert-paper",
        f"{VILBERT}, sec. 3.3; warm-up, tokens and regions [code]",
        run(4e-5, 256, epochs=20, warmup=0.1, warmup_steps=None) | fed(20, 99),
    ),
    (of_vilbert("refcoco"), "[code]", run(4e-5, 256, drops=DROPS)),
    (
        "retrieval-vilbert*",
        f"{VILBERT}, sec. 3.3; warm-up, tokens and regions [code]",
        run(2e-5, 64, epochs=20, warmup=0.1, warmup_steps=None)
        | fed(30, 99)
        | {"settings.negatives": "alignment", "settings.num_candidates": 4},
    ),
    ("retrieval-vilbert retrieval-vilbert-from-bert", "[code]", run(2e-5, 64, drops=DROPS)),
    # Data sets that ViLBERT's paper does not have: the tables of 12-in-1's code and of mmf's.
    ("classification-vilbert-hateful-memes entailment-vilbert-12in1", MMF_OR_12IN1, NO_AVERAGE),
    ("entailment-vilbert-mmf", MMF_OR_12IN1, NO_AVERAGE),
    ("vqa-vilbert-gqa", MMF_OR_12IN1, of_12in1(4e-5, 128, epochs=20) | fed(26, 99)),
    ("vqa-vilbert-okvqa", MMF_OR_12IN1, of_12in1(4e-5, 128, epochs=200) | fed(23, 99)),
    ("entailment-vilbert-12in1", MMF_OR_12IN1, of_12in1(2e-5, 256, epochs=20) | fed(56, 99)),
    ("vqa-vilbert-vizwiz", MMF_OR_12IN1, of_mmf(5e-5, 480, steps=60_000, warmup_steps=6000)),
    ("entailment-vilbert-mmf", MMF_OR_12IN1, of_mmf(5e-5, 480, steps=60_000, warmup_steps=6000)),
    (
        "classification-vilbert-hateful-memes",
        MMF_OR_12IN1,
        of_mmf(1e-5, 32, steps=22_000, warmup_steps=2000) | {"settings.select_by": "auroc"},
    ),
    # VL-BERT.
    (
        "vqa-vl-bert vqa-vl-bert-large vqa-vl-bert-from-bert",
        "[code]: 6.25e-7 a row",
        run(1.6e-4, 256, weight_decay=1e-4, warmup_steps=500, clip=1.0),
    ),
    ("vqa-vl-bert vqa-vl-bert-large", "[code]: enough after pretraining", {"epochs": 5}),
    ("vqa-vl-bert-from-bert", "the code's author: without pretraining", {"epochs": 20}),
    (
        "vcr-vl-bert-paper-*",
        f"{VLBERT}, sec. 3.3: every chosen region is masked",
        {"settings.masking.region_to_zero": 1.0},
    ),
    (
        "vqa-vl-bert-paper",
        f"{VLBERT}, sec. 4.2; decay and clipping [code]",
        run(1e-4, 256, weight_decay=1e-4, epochs=20, warmup_steps=2_000, clip=1.0),
    ),
    ("vqa-vl-bert-large", "[code]", {"accumulation": 4}),
    (
        "refcoco-vl-bert refcoco-vl-bert-annotated refcoco-vl-bert-from-bert "
        "refcoco-vl-bert-end-to-end*",
        "[code]: 8e-7 a row",
        run(2.56e-5, 32, weight_decay=1e-4, epochs=20, warmup_steps=3_750, clip=1.0),
    ),
    (
        "refcoco-vl-bert-paper*",
        f"{VLBERT}, sec. 4.2; decay and clipping [code]",
        run(2e-4, 256, weight_decay=1e-4, epochs=20, warmup_steps=500, clip=1.0),
    ),
    (
        "vcr-vl-bert-*",
        f"{VLBERT}, sec. 4.1; warm-up, clipping and lengths [code]",
        {"batch_size": 64, "epochs": 20, "optimizer.drops": (14.0, 18.0)}
        | {"optimizer.weight_decay": 1e-4, "optimizer.momentum": 0.9, "optimizer.clip": 10.0}
        | {"optimizer.warmup_steps": 1_000, "settings.max_tokens": 64},
    ),
    ("vcr-vl-bert-q* vcr-vl-bert-end*", "[code]: 7e-5 a question", {"optimizer.lr": 4.48e-3}),
    ("vcr-vl-bert-paper-*", f"{VLBERT}, sec. 4.1", {"optimizer.lr": 2e-3}),
    # ImageBERT.
    (
        "retrieval-imagebert*",
        f"{IMAGEBERT}, sec. 4.2; warm-up and decay BERT's [choice]",
        run(5e-5, 24, epochs=130, warmup=0.1, warmup_steps=None)
        | {"feeding.max_tokens": 44, "settings.negatives": "both"},
    ),
    ("retrieval-imagebert-36-regions", f"{IMAGEBERT}, table 4", {"feeding.max_regions": 36}),
    (
        "retrieval-imagebert retrieval-imagebert-[!3]*",
        f"{IMAGEBERT}, sec. 5.2",
        {"feeding.max_regions": 100},
    ),
    # InterBERT.
    (
        "retrieval-interbert retrieval-interbert-from-bert",
        "[code]",
        run(4e-5, 64, epochs=20, warmup=0.1, warmup_steps=None, drops=INTERBERT_DROPS)
        | fed(30, 100)
        | {"settings.negatives": "alignment", "settings.num_candidates": 4},
    ),
    (
        "retrieval-interbert-paper retrieval-interbert-chinese",
        f"{INTERBERT}, sec. 4",
        run(4e-5, 32, epochs=20, warmup_steps=10_000, drops=()) | {"settings.num_candidates": 4},
    ),
    (
        "retrieval-interbert-paper",
        f"{INTERBERT}, sec. 4: three negative images; tokens [code]",
        fed(30, 100) | {"settings.negatives": "pictures", "settings.losses": ("softmax",)},
    ),
    ("retrieval-interbert-chinese", f"{INTERBERT}, sec. 5: 36 characters", fed(38, 16)),
    (
        "vcr-interbert*",
        f"{INTERBERT}, sec. 4; lengths, regions and turns [code]",
        run(2e-5, 32, epochs=5)
        | {"settings.max_tokens": 60, "settings.max_tokens_with_answer": 80}
        | {"feeding.max_regions": 99, "settings.in_turns": True},
    ),
    (
        "vcr-interbert vcr-interbert-from-bert",
        "[code]: a tenth of the iterations, of two updates each",
        run(2e-5, 32, warmup=0.05, warmup_steps=None, drops=INTERBERT_DROPS),
    ),
    (
        "vcr-interbert-paper vcr-interbert-without-bert",
        f"{INTERBERT}, sec. 4.2",
        run(2e-5, 32, warmup_steps=10_000, drops=()),
    ),
    (
        "glue-bert glue-single-stream glue-interbert*",
        f"{INTERBERT}, sec. 4.3; warm-up and decay BERT's [choice]",
        run(2e-5, 128, epochs=3, warmup=0.1, warmup_steps=None) | {"feeding.max_tokens": 128},
    ),
    # VLMo.
    *vlmo_rows("vqa", {"base": (3e-5, 0.15), "base-plus": (3e-5, 0.15), "large": (1.5e-5, 0.15)}),
    *vlmo_rows("nlvr2", {"base": (5e-5, 0.1), "base-plus": (3e-5, 0.2), "large": (3e-5, 0.15)}),
    ("vqa-vlmo-*", f"{VLMO}, sec. 4.2", {"feeding.image_size": 480, "feeding.max_tokens": 40}),
    ("vqa-vlmo-base vqa-vlmo-base-plus vqa-vlmo-large", "[code]", {"optimizer.head_rate": 20.0}),
    ("vqa-vlmo-base-paper vqa-vlmo-large-paper", "the paper has one", {"optimizer.head_rate": 1.0}),
    ("nlvr2-vlmo-base nlvr2-vlmo-base-p* nlvr2-vlmo-large*", VLMO, {"feeding.image_size": 384}),
    (
        "nlvr2-vlmo-base-224",
        f"{VLMO}, the ablations' run; drop path [code]",
        vlmo(5e-5, 128, epochs=10) | {"feeding.image_size": 224, "model.encoder.drop_path": 0.1},
    ),
    *retrieval_rows(),
    (
        "retrieval-vlmo-base-flickr30k-224",
        f"{VLMO}, the ablations' run; drop path [code]",
        vlmo(5e-5, 1024, epochs=10) | {"feeding.image_size": 224, "model.drop_path": 0.15},
    ),
)

# Recipes of a task that their model's paper and code do not have.
OURS = (
    "glue-vlmo-*",
    "nlvr2-vilbert*",  # 12-in-1's way, which is not among the papers
    "nlvr2-interbert*",
    *("vqa-imagebert*", "vqa-interbert*"),
    *(
        f"{task}-{model}"
        for task in ("classification", "entailment")
        for model in (
            *("vilbert", "vilbert-from-bert", "single-stream*", "vl-bert*", "imagebert*"),
            *("interbert*", "vlmo-*"),
        )
    ),
)
