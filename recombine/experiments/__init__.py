"""One file per claim: runs(scale), summary(rows), figures(rows), claims(rows). Found by scanning this folder."""
