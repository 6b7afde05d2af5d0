"""Google Compute Engine. Its client library is the extra ``gcp`` and is imported in ``client`` alone."""
