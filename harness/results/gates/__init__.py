"""What a CI job makes of results: limits on static figures, histories of times, files of findings."""
