"""The algorithm of the papers and what it is written in: drafts, sampling, noise, verification. Start reading here."""
