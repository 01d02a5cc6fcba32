"""This is the Faster R-CNN that computes region features.

Reading order: ``config``, ``faster_rcnn``, its ``backbone`` and ``roi_heads``, ``resnet``,
``anchors``, ``proposals``, ``boxes``, ``nms``, ``operators`` (torchvision's pooling),
``fused_stages`` of ``folded`` convolutions, ``gpu`` and ``gpu_kernels`` (what a GPU computes
otherwise), ``configurations`` (other projects' keys, with ``key_tables``, ``maskrcnn_keys``
and ``keys``), ``published`` (their weights, with ``published_names`` and ``caffe``), ``fit`` (what
a file lacks) and ``random_weights``.
"""
