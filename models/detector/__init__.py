"""Implements the Faster R-CNN that computes region features.

Reading order: ``config``, ``faster_rcnn``, its ``backbone`` and ``roi_heads``, ``resnet``,
``anchors``, ``proposals``, ``boxes``, ``nms``, ``operators`` (torchvision's pooling),
``fused_stages`` of ``folded`` convolutions, ``gpu`` and ``gpu_kernels`` (kernels for GPUs),
``configurations`` (other projects' keys, with ``key_tables``, ``maskrcnn_keys`` and ``keys``),
``published`` (their weights, with ``published_names`` and ``caffe``), ``fit`` (missing and
unexpected tensors of a file) and ``random_weights``.
"""
