"""Tuning: trials of fine-tuning in search of the settings that suit a task."""
