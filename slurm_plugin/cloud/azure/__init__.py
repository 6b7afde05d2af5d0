"""Azure virtual machines. The client library is the extra ``azure`` and is imported in ``client`` alone."""
