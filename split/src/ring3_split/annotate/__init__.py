"""Marshaling annotations.

What crosses between the halves of a plan, what is known of it, and what a person must say.

The road: `interface` (entries, downcalls, fields), `flow` (where a pointer goes), `infer` (rules
with evidence), `questions` (the file that a person edits), `check` (every answer fits, nothing is
unknown). `vocabulary` is the language of all notes, `api.toml` the knowledge about the kernel's
functions. [Microdrivers 4]
"""
