"""Backups of a training, and how to resume from one."""
