"""Turn results into what a CI job needs: limits on static figures, histories of times, files of findings."""
