"""This is the Faster R-CNN that computes region features.

Reading order: ``config``, ``faster_rcnn``, ``resnet``, ``proposals``, ``boxes``, ``nms``,
``roi_pool``, ``cpu_stages`` (folded stages), ``published`` (weights of other projects) and
``random_weights``.
"""
