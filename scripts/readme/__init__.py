"""Make the tables of README.md and docs/*.md, a module for each kind."""
