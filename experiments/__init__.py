"""Experiments: each main claim of the papers, at a size for one machine; see docs/evidence.md.

python -m experiments list
python -m experiments run NAME
python -m experiments report
"""
