"""Every table and figure of the three papers, theirs beside ours: what ``outrider paper`` runs."""
