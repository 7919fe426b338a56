"""Experiments: each main claim of the papers, at a size for one machine; see docs/evidence/.

python -m experiments list
python -m experiments run NAME
python -m experiments report
"""
