"""Backups of a training, and going on from one."""
