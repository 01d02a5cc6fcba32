"""Fine-tuning as each paper and each released code does it.

Reading order: ``shared`` (what several papers share), and a paper with all of its tasks:
``vilbert``, ``vlbert``, ``imagebert``, ``interbert``, ``vlmo``, ``bert``; then ``data_sets`` (GQA,
VizWiz, OK-VQA) and ``classes`` (classification and entailment with every model). [code] marks
released code, [choice] ours. Published runs do not select a checkpoint: the last epoch counts.
"""
