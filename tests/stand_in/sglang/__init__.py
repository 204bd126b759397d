"""A stand-in for SGLang 0.5.12.post1: its command line, its log, its endpoints, its capacity rule and its way to die; no model.

``python -m sglang.launch_server`` with ``tests/stand_in`` on the path. Figures are those of the H200 recordings beside this folder.
"""
