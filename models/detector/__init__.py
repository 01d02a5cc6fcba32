"""This is the Faster R-CNN that computes region features.

Reading order: ``config``, ``faster_rcnn``, its ``backbone`` and ``roi_heads``, ``resnet``,
``anchors``, ``proposals``, ``boxes``, ``nms``, ``roi_pool``, ``operators`` (torchvision's pooling),
``fused_stages`` of ``folded`` convolutions, ``gpu`` and ``gpu_kernels`` (what a GPU computes
otherwise), ``configurations`` (other projects' keys, with ``key_tables`` and ``keys``),
``published`` (their weights), ``fit`` (what a file lacks) and ``random_weights``.
"""
