"""Declares the arguments of ``train-vl convert``, and runs it."""

import argparse
from collections.abc import Sequence

from vlmill.inference.convert.arguments import check_arguments
from vlmill.models.registry import FAMILY_NAMES, PRESETS, STARTS
from vlmill.runtime.console.command import Parser, add_lock_seconds, path_or_url
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.weights.names import path_or_name

# The names of `vlmill.models.vlbert.backbone.CONVENTIONS`, which loads torch.
CONVENTIONS = ("released", "torchvision")
# The published families, and networks that only start one of ours.
SOURCES = tuple(sorted({*FAMILY_NAMES, *STARTS}))

CONVERT_HELP = """\
Convert a published checkpoint to vlmill's format or back, or start a model from BERT, BEiT or ViT.

examples:
  train-vl convert --family bert --checkpoint bert-base-uncased/ --output ours/bert
      Writes model.safetensors, checkpoint.json and vocab.txt; DIR is a --checkpoint and --init.
  train-vl convert --family vl-bert --checkpoint vl-bert-base-prec.model --config vl-bert-base \\
      --vocab vocab.txt --output ours/vl-bert
      The file has no configuration, so a preset defines it.
  train-vl convert --family bert --checkpoint pytorch_model.bin --vocab vocab.txt \\
      --as imagebert-base --output start/imagebert region_width=1024
      A new model of that preset with BERT's weights where its paper or code uses them;
      `train-vl pretrain imagebert --init start/imagebert ...` starts from it.
  train-vl convert --family bert --checkpoint ours/bert --to reference --output bert.safetensors
      A vlmill checkpoint with the names of the official repository.
  train-vl convert --family beit --checkpoint beit_base_patch16_224_pt22k.pth --as vlmo-base \\
      --vocab vocab.txt --output start/vlmo max_text_tokens=196
      VLMo from BEiT, for its second stage, which reads texts only.
  train-vl convert --family vit --checkpoint vit-base/ --as vlmo-base-paper --vocab vocab.txt \\
      --output start/vlmo experts=all
      VLMo from a ViT, with all experts (an ablation of the paper).
  train-vl convert --family bert --checkpoint bert-base-uncased/ --as vl-bert-base-end-to-end \\
      --backbone resnet101-pt-vgbua-0000.model --output start/vl-bert-end-to-end
      The region network starts from the weights of a ResNet or a detector.
  train-vl convert --family bert --checkpoint pytorch_model.bin --as imagebert-base --explain
      Prints the source of each parameter and the unused tensors of the file; without --output
      nothing is written.
"""

CONVERT_NOTES = f"""\
--checkpoint is a file (.safetensors, or PyTorch's, of which only tensors are read and nothing is
executed) or a folder that contains one; the configuration and the vocabulary are searched in the
same folder. --output FILE.safetensors writes only the weights. An image tokenizer (family dvae,
without --config) has nothing else: training reads it with picture_tokenizer=FILE. The same
arguments write the same bytes.

--backbone reads ResNets with the names of torchvision, Detectron2 and MSRA (Caffe2), and the
detectors of extract-rois. The names do not show how a ResNet was trained. The default of
--backbone-conventions is that of the released file: pixels in the order blue, green, red, 0 to 255
minus their mean, the stride in the 1x1 convolution. torchvision's own weights need
--backbone-conventions torchvision and cnn.stride_in_1x1=false.

experts=image (the default) starts VLMo's vision experts from BEiT or the ViT, and experts=all
also its language and vision-language experts. A ViT has the names of DeiT and timm, or of
transformers' ViT and DeiT. Only presets with absolute positions (vlmo-*-paper, vlmo-base-plus)
use its positions.

families: {", ".join(FAMILY_NAMES)}; with --as also vit
presets: {", ".join(sorted(PRESETS))}

Memory: the checkpoint's size and about twice the model's.
"""


def add_convert_arguments(parser: Parser) -> None:
    """Declares the arguments of ``convert``."""
    parser.description, parser.epilog = CONVERT_HELP, CONVERT_NOTES
    add = parser.add_argument
    add("words", nargs="*", metavar="field=value", help="changes to fields of the preset")
    add("--family", required=True, choices=SOURCES, metavar="FAMILY")
    add(
        "--checkpoint",
        required=True,
        type=path_or_name,
        metavar="FILE",
        help="checkpoint to convert: a file, a folder, hf://OWNER/NAME[/FILE][@REVISION] or "
        "https://... (`train-vl weights` lists published ones)",
    )
    add(
        "--config",
        type=path_or_url,
        metavar="FILE|PRESET|DIR",
        help="published configuration (JSON or YAML), name of a preset, or a vlmill "
        "checkpoint of the same sizes; with --as: the source's configuration, whose "
        "heads and activation must equal the preset's",
    )
    add(
        "--vocab",
        type=path_or_name,
        metavar="FILE",
        help="published vocab.txt or tokenizer.json: a file, or hf://OWNER/NAME[@REVISION]",
    )
    add("--as", dest="preset", metavar="PRESET", help="start a new model of this preset")
    add(
        "--backbone",
        type=path_or_name,
        metavar="FILE",
        help="with --as vl-bert-*-end-to-end: weights for its region network: a ResNet "
        "or a detector, as a file or as a name that --checkpoint accepts",
    )
    add(
        "--backbone-conventions",
        choices=CONVENTIONS,
        help="pixel order, scale and strides of the ResNet in --backbone (default: released, "
        "as in VL-BERT's published ResNet; omit it for detectors and MSRA's files)",
    )
    add("--seed", type=int, metavar="N", help="with --as: seed of new weights (default: 0)")
    add("--to", choices=("vlmill", "reference"), default="vlmill", help="format to write")
    add(
        "--omit",
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="with --to reference: name of a tensor to omit because the official layout lacks it "
        "(repeatable)",
    )
    add("--output", type=path_or_url, metavar="DIR|FILE.safetensors")
    add_lock_seconds(parser)
    add_allow_address(parser)
    add("--explain", action="store_true", help="print the source of each parameter")


def run_convert(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs the conversion; returns the exit status."""
    from vlmill.inference.convert.named import resolve_sources

    resolve_sources(args)
    check_arguments(args, words)
    # torch takes seconds to load: import it only after the arguments are checked.
    from vlmill.inference.convert.conversion import convert

    return convert(args, words)
