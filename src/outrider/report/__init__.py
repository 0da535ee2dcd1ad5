"""From results and formulas to tables and pictures. Nothing here loads a model or needs torch."""
