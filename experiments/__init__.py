"""Experiments: each headline of the papers at a size that one machine can play; docs/evidence/.

python -m experiments list
python -m experiments run NAME
python -m experiments report
"""
