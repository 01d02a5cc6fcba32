"""What several folders ask of the web's pages and servers, without a network.

Reading order: ``opt_outs``.
"""
