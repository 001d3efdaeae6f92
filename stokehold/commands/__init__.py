"""The commands of `stokehold`, one small module for each group. They parse, call, print and choose the exit code."""
