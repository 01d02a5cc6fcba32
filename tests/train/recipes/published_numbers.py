"""What papers and released codes print, by recipe and field; the test reads the recipes.

A row has patterns of recipes' names, the source, and fields with their values. Fields of a stage
hold in every stage; ``objectives`` are the weights that are not 0. [code] is the released one,
[choice] marks what is ours where neither says it.
"""

from typing import Any

Row = tuple[str, str, dict[str, Any]]


def run(lr: float, batch_size: int, *, weight_decay: float = 0.01, **more: Any) -> dict[str, Any]:
    """The numbers of a run's optimiser, under their fields' names."""
    fields = {"batch_size": batch_size, "optimizer.lr": lr, "optimizer.weight_decay": weight_decay}
    in_optimizer = ("warmup", "warmup_steps", "drops", "head_rate", "beta2", "eps", "clip")
    named = {(f"optimizer.{name}" if name in in_optimizer else name): more[name] for name in more}
    return fields | named


def masks(words: float, regions: float, to_mask: float, to_zero: float) -> dict[str, float]:
    """Shares of what is masked."""
    return {
        "masking.words": words,
        "masking.regions": regions,
        "masking.word_to_mask": to_mask,
        "masking.region_to_zero": to_zero,
    }


def fed(tokens: int, regions: int) -> dict[str, int]:
    """The longest texts, and the most regions besides the image-level one."""
    return {"feeding.max_tokens": tokens, "feeding.max_regions": regions}


def weights(**objectives: float) -> dict[str, dict[str, float]]:
    """The weights of the losses."""
    return {"objectives": objectives}


VILBERT = "arXiv:1908.02265"
VILBERT_CODE = (
    "vilbert vilbert-single-stream vilbert-?-layers vilbert-large vilbert-large-?-layers "
    "vilbert-25-percent vilbert-50-percent"
)
VLBERT = "arXiv:1908.08530"
VLBERT_TEXTS = "vl-bert vl-bert-large vl-bert-end-to-end vl-bert-end-to-end-large"
VLBERT_PAPER = "vl-bert-paper vl-bert-paper-end-to-end"
IMAGEBERT = "arXiv:2001.07966"
INTERBERT = "arXiv:2003.13198"
INTERBERT_PAPER = (
    "interbert interbert-random-negatives interbert-single-masks interbert-without-bert "
    "interbert-single-stream interbert-chinese"
)
VLMO = "arXiv:2111.02358"
PAIRS_BASE = "vlmo-base vlmo-base-without-texts"
ADAM_OF_VLMO: dict[str, Any] = {"beta2": 0.98, "eps": 1e-8, "clip": 0.0}

PRETRAINING: tuple[Row, ...] = (
    (
        "bert-base bert-large",
        "arXiv:1810.04805, app. A.2",
        run(1e-4, 256, steps=1_000_000, warmup_steps=10_000, beta2=0.999) | weights(text_mlm=1.0),
    ),
    (
        f"{VILBERT_CODE} vilbert-paper",
        f"{VILBERT}, sec. 3.1 and 4; warm-up [code], decay BERT's",
        run(1e-4, 512, epochs=10, warmup=0.1, warmup_steps=None, beta2=0.999, eps=1e-6)
        | masks(0.15, 0.15, 0.8, 0.9)
        | fed(36, 36)
        | weights(mlm=1.0, mrkl=1.0, itm=1.0),
    ),
    (VILBERT_CODE, "[code]", {"optimizer.bert_rate": 0.1, "negative_text_share": 1.0, "seed": 42}),
    (
        "vilbert-paper",
        f"{VILBERT}, sec. 3.1",
        {"optimizer.bert_rate": 1.0, "negative_text_share": 0.5},
    ),
    ("vilbert-25-percent", f"{VILBERT}, table 3", {"share": 0.25}),
    ("vilbert-50-percent", f"{VILBERT}, table 3", {"share": 0.5}),
    (
        f"{VLBERT_TEXTS} vl-bert-captions {VLBERT_PAPER}",
        "[code]",
        {"epochs": 10, "seed": 12_345, "optimizer.beta2": 0.999, "optimizer.eps": 1e-6},
    ),
    (
        VLBERT_TEXTS,
        "[code], configurations with texts alone",
        run(2.56e-5, 128, weight_decay=1e-4, warmup_steps=16_000, clip=10.0)
        | {"feeding.text_rows": 128}
        | weights(mlm=1.0, text_mlm=1.0, mrce=1.0),
    ),
    (
        "vl-bert-captions",
        "[code], base_prec_withouttextonly",
        run(2.56e-5, 256, weight_decay=1e-4, warmup_steps=8_000, clip=10.0)
        | {"feeding.text_rows": 0}
        | weights(mlm=1.0, mrce=1.0),
    ),
    (
        f"{VLBERT_TEXTS} vl-bert-captions",
        "[code]",
        masks(0.15, 0.15, 0.8, 0.9) | {"feeding.max_elements": 64, "feeding.flip": 0.5},
    ),
    ("vl-bert-end-to-end-large", "[code]", {"accumulation": 2}),
    (
        VLBERT_PAPER,
        f"{VLBERT}, sec. 3.3 and 4.1; clipping [code]",
        run(1e-4, 256, weight_decay=1e-4, warmup_steps=8_000, clip=10.0)
        | masks(0.15, 0.15, 1.0, 1.0)
        | {"negative_share": 0.5}
        | weights(mlm=1.0, moc=1.0, itm=1.0),
    ),
    (
        "imagebert imagebert-*",
        f"{IMAGEBERT}, sec. 3.3 and 5.2; warm-up and decay BERT's [choice]",
        run(1e-4, 48, epochs=17, warmup=0.1, warmup_steps=None, beta2=0.999)
        | masks(0.15, 0.15, 0.8, 0.9)
        | fed(44, 100),
    ),
    (
        "imagebert imagebert-lait imagebert-mixed",
        f"{IMAGEBERT}, sec. 3.3",
        weights(mlm=1.0, moc=1.0, mrfr=1.0, itm=1.0),
    ),
    (
        "imagebert-cc imagebert-cc-sbu imagebert-cc-sbu-global",
        f"{IMAGEBERT}, tables 3 and 4: the rows without MRFR",
        weights(mlm=1.0, moc=1.0, itm=1.0) | {"objectives.mrfr": 0.0},
    ),
    ("imagebert imagebert-lait", f"{IMAGEBERT}, sec. 5.2", {"stages.0.max_pairs": 2_000_000}),
    (
        INTERBERT_PAPER,
        f"{INTERBERT}, sec. 4.2; weights [code]",
        run(1e-4, 512, epochs=20, warmup_steps=10_000, beta2=0.9999, eps=1e-6)
        | weights(mlm=1.0, moc=1.0, itm=1.0),
    ),
    (
        "interbert-released",
        "[code]",
        run(1e-4, 512, epochs=15, warmup=0.1, warmup_steps=None, beta2=0.999, eps=1e-6)
        | {"optimizer.bert_rate": 0.1}
        | weights(mlm=1.0, mrkl=1.0, itm=1.0),
    ),
    (
        "interbert interbert-random-negatives interbert-without-bert interbert-single-stream "
        "interbert-released interbert-chinese",
        f"{INTERBERT}, sec. 3.2",
        masks(0.1, 0.1, 0.8, 1.0) | {"masking.group_overlap": 0.4},
    ),
    ("interbert-single-masks", "[code] without its flag", masks(0.15, 0.15, 0.8, 0.9)),
    (
        "interbert interbert-single-masks interbert-without-bert interbert-single-stream "
        "interbert-chinese",
        f"{INTERBERT}, sec. 3.2",
        {"hard_negative_share": 0.2},
    ),
    (
        "interbert-random-negatives interbert-released",
        f"{INTERBERT}, table 5; [code]",
        {"hard_negative_share": 0.0},
    ),
    ("interbert interbert-[rsw]*", "[code]", fed(36, 36)),
    ("interbert-chinese", f"{INTERBERT}, sec. 5: 36 characters", fed(38, 16)),
    (
        "vlmo-images-*",
        "arXiv:2106.08254, sec. 3.1; [code]",
        run(1.5e-3, 2048, weight_decay=0.05, epochs=150, warmup_steps=10_000, beta2=0.999)
        | {"optimizer.eps": 1e-8, "optimizer.clip": 3.0, "optimizer.end": 1e-5 / 1.5e-3}
        | {"model.drop_path": 0.1}
        | weights(mim=1.0),
    ),
    (
        "vlmo-texts-*",
        f"{VLMO}, sec. 4.1; eps and clipping [code]",
        run(2e-4, 1024, warmup_steps=2_500, **ADAM_OF_VLMO)
        | {"masking.words": 0.15, "feeding.max_tokens": 196, "model.drop_path": 0.1}
        | weights(text_mlm=1.0),
    ),
    ("vlmo-texts-base vlmo-texts-base-paper", f"{VLMO}, sec. 4.1", {"steps": 500_000}),
    (
        "vlmo-texts-base-plus vlmo-texts-large vlmo-texts-large-paper",
        f"{VLMO}, sec. 4.1; base-plus [code]",
        {"steps": 200_000},
    ),
    (
        f"{PAIRS_BASE} vlmo-base-plus vlmo-large vlmo-base-paper vlmo-large-paper vlmo-vit*",
        f"{VLMO}, sec. 4.1; eps and clipping [code]",
        {f"optimizer.{name}": value for name, value in ADAM_OF_VLMO.items()}
        | {"steps": 200_000, "batch_size": 1024, "optimizer.warmup_steps": 2_500}
        | {"optimizer.weight_decay": 0.01, "masking.words": 0.15, "model.drop_path": 0.1}
        | {"feeding.max_tokens": 40, "feeding.image_size": 224},
    ),
    (f"{PAIRS_BASE} vlmo-base-paper vlmo-vit*", f"{VLMO}, sec. 4.1", {"optimizer.lr": 2e-4}),
    ("vlmo-base-plus", "[code]", {"optimizer.lr": 1e-4}),
    ("vlmo-large vlmo-large-paper", f"{VLMO}, sec. 4.1", {"optimizer.lr": 5e-5}),
    (f"{PAIRS_BASE} vlmo-base-plus vlmo-large", "[code]", weights(mlm=0.25, itm=1.0, itc=1.0)),
    (
        "vlmo-base-paper vlmo-large-paper vlmo-vit vlmo-vit-standard vlmo-vit-without-vl-experts",
        f"{VLMO}, sec. 3.3",
        weights(mlm=1.0, itm=1.0, itc=1.0),
    ),
    ("vlmo-vit-itc", f"{VLMO}, table 4", weights(itc=1.0)),
    ("vlmo-vit-itc-mlm", f"{VLMO}, table 4", weights(itc=1.0, mlm=1.0)),
    ("vlmo-vit-itc-itm", f"{VLMO}, table 4", weights(itc=1.0, itm=1.0)),
)
