"""Implements the Faster R-CNN that computes region features.

Reading order: ``config``, ``faster_rcnn``, its ``backbone`` and ``roi_heads``, ``resnet``,
``proposals`` (from anchors), ``boxes``, ``nms``, ``operators`` (torchvision's pooling),
``fused_stages`` of ``folded`` convolutions, ``gpu_kernels``,
``configurations`` (other projects' keys, with ``key_tables`` and ``keys``),
``published`` (their weights, with ``published_names`` and ``caffe``) and ``random_weights``.
"""
